#include "common/transport/transfer_plan.h"

#include <map>
#include <set>
#include <tuple>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr int32_t kBlockSizes[] = {1, 8, 16, 32, 64, 128, 256};

struct Case {
  PlanArgs plan;
  PoolSide sender;
  PoolSide receiver;
};

Case Draw(int32_t sender_block, int32_t receiver_block, Random* random) {
  Case c;
  const int32_t heads = 1 << random->Below(4);
  const int32_t sender_tp = 1 << random->Below(4);
  const int32_t receiver_tp = 1 << random->Below(4);
  // A rank holds heads / tp heads; with fewer heads than ranks a head is held by several.
  auto slice = [&](int32_t tp) {
    const int32_t rank = random->Below(tp);
    if (tp <= heads) return HeadRange{rank * (heads / tp), heads / tp};
    return HeadRange{rank * heads / tp, 1};
  };
  c.sender = {sender_block, slice(sender_tp)};
  c.receiver = {receiver_block, slice(receiver_tp)};
  c.plan.layer = static_cast<int32_t>(random->Below(5));
  c.plan.tokens.first = static_cast<int32_t>(random->Below(700));
  c.plan.tokens.count = static_cast<int32_t>(1 + random->Below(700));
  c.plan.heads = Intersect(c.sender.heads, c.receiver.heads);
  c.plan.k_bytes = 2 * static_cast<int64_t>(1 + random->Below(64));
  c.plan.v_bytes = random->Below(8) == 0 ? 0 : 2 * static_cast<int64_t>(1 + random->Below(64));
  c.plan.align_tokens = std::max(sender_block, receiver_block);
  c.plan.max_payload_bytes =
      std::max(c.plan.k_bytes, c.plan.v_bytes) + static_cast<int64_t>(random->Below(20000));
  return c;
}

// The (token, head) that each token-sized piece of a segment list stands for, in order.
std::vector<std::pair<int32_t, int32_t>> Expand(const std::vector<Segment>& segments,
                                                const PoolSide& side, int64_t head_token_bytes) {
  std::vector<std::pair<int32_t, int32_t>> cells;
  for (const Segment& s : segments) {
    EXPECT_GT(s.bytes, 0);
    EXPECT_EQ(s.bytes % head_token_bytes, 0);
    EXPECT_EQ(s.offset % head_token_bytes, 0);
    EXPECT_LE(s.offset + s.bytes, side.block_size * head_token_bytes);
    EXPECT_GE(s.head, 0);
    EXPECT_LT(s.head, side.heads.count);
    for (int64_t at = 0; at < s.bytes; at += head_token_bytes) {
      cells.emplace_back(s.block_index * side.block_size +
                             static_cast<int32_t>((s.offset + at) / head_token_bytes),
                         s.head + side.heads.first);
    }
  }
  return cells;
}

void CheckCase(const Case& c) {
  auto frames = PlanFrames(c.plan);
  ASSERT_TRUE(frames.ok()) << frames.status();
  // How often each token of each head of each plane is named by a frame.
  const size_t plane_cells = size_t{1} * c.plan.tokens.count * c.plan.heads.count;
  std::vector<int> seen(2 * plane_cells);
  for (const FrameRange& f : *frames) {
    const int64_t bytes = f.plane == KvPlane::kK ? c.plan.k_bytes : c.plan.v_bytes;
    ASSERT_EQ(f.layer, c.plan.layer);
    ASSERT_LE(bytes * f.num_tokens * f.num_heads, c.plan.max_payload_bytes);
    const auto sent = Expand(MapFrame(f, c.sender, bytes), c.sender, bytes);
    const auto received = Expand(MapFrame(f, c.receiver, bytes), c.receiver, bytes);
    ASSERT_EQ(sent, received);
    ASSERT_EQ(sent.size(), size_t{1} * f.num_tokens * f.num_heads);
    size_t i = 0;
    for (int32_t h = 0; h < f.num_heads; ++h) {
      for (int32_t t = 0; t < f.num_tokens; ++t, ++i) {
        ASSERT_EQ(sent[i], std::make_pair(f.first_token + t, f.first_head + h));
        const size_t cell =
            (size_t{1} * f.first_head + h - c.plan.heads.first) * c.plan.tokens.count +
            (f.first_token + t - c.plan.tokens.first);
        ASSERT_LT(cell, plane_cells);
        ++seen[(f.plane == KvPlane::kV ? plane_cells : 0) + cell];
      }
    }
  }
  for (size_t i = 0; i < plane_cells; ++i) {
    ASSERT_EQ(seen[i], 1);
    ASSERT_EQ(seen[plane_cells + i], c.plan.v_bytes > 0 ? 1 : 0);
  }
}

TEST(TransferPlanTest, NamesEveryTokenOfEveryHeadOnceAndTheSameBytesOnBothSides) {
  Random random(7);
  for (int32_t sender_block : kBlockSizes) {
    for (int32_t receiver_block : kBlockSizes) {
      for (int i = 0; i < 8; ++i) {
        const Case c = Draw(sender_block, receiver_block, &random);
        SCOPED_TRACE(testing::Message()
                     << sender_block << " to " << receiver_block << ", tokens "
                     << c.plan.tokens.first << " +" << c.plan.tokens.count << ", heads "
                     << c.plan.heads.first << " +" << c.plan.heads.count << ", max "
                     << c.plan.max_payload_bytes);
        CheckCase(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TransferPlanTest, EveryHeadOfAReceiverComesOnceFromTheSendersThatHoldThemOnce) {
  for (int32_t heads : {4, 8, 12}) {
    for (int32_t sender_tp : {1, 2, 4}) {
      for (int32_t receiver_tp : {1, 2, 4}) {
        std::map<int32_t, int> got;
        for (int32_t r = 0; r < receiver_tp; ++r) {
          const HeadRange to{r * heads / receiver_tp, heads / receiver_tp};
          for (int32_t s = 0; s < sender_tp; ++s) {
            const HeadRange both = Intersect({s * heads / sender_tp, heads / sender_tp}, to);
            for (int32_t h = 0; h < both.count; ++h) ++got[both.first + h];
          }
        }
        EXPECT_EQ(got.size(), static_cast<size_t>(heads));
        for (auto [head, times] : got) EXPECT_EQ(times, 1) << "head " << head;
      }
    }
  }
}

TEST(TransferPlanTest, CutsFramesAtBlockBoundariesWhenTheBoundLeavesRoom) {
  auto frames = PlanFrames({.layer = 2,
                            .tokens = {5, 100},
                            .heads = {0, 2},
                            .k_bytes = 4,
                            .v_bytes = 4,
                            .align_tokens = 16,
                            .max_payload_bytes = 40 * 2 * 4});
  ASSERT_TRUE(frames.ok());
  ASSERT_EQ(frames->size(), 8u);
  EXPECT_EQ((*frames)[0], (FrameRange{2, KvPlane::kK, 5, 27, 0, 2}));
  EXPECT_EQ((*frames)[1], (FrameRange{2, KvPlane::kK, 32, 32, 0, 2}));
  EXPECT_EQ((*frames)[2], (FrameRange{2, KvPlane::kK, 64, 32, 0, 2}));
  EXPECT_EQ((*frames)[3], (FrameRange{2, KvPlane::kK, 96, 9, 0, 2}));
  EXPECT_EQ((*frames)[4].plane, KvPlane::kV);
}

TEST(TransferPlanTest, RefusesATokenThatIsLargerThanAFrame) {
  EXPECT_EQ(PlanFrames({.tokens = {0, 1}, .heads = {0, 1}, .k_bytes = 65, .max_payload_bytes = 64})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PlanFrames({.tokens = {-1, 1}, .heads = {0, 1}, .k_bytes = 6, .max_payload_bytes = 64})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(TransferPlanTest, RefusesWhatIsNoRangeAndTakesATokenThatFillsAFrame) {
  const PlanArgs good{.tokens = {0, 4},
                      .heads = {0, 2},
                      .k_bytes = 16,
                      .v_bytes = 8,
                      .max_payload_bytes = 16};
  auto frames = PlanFrames(good);
  ASSERT_TRUE(frames.ok()) << frames.status();
  EXPECT_EQ(frames->size(), 4u * 2 + 4u);  // K: a token and head each; V: a token's two heads.
  const auto refused = [&](auto change) {
    PlanArgs bad = good;
    change(bad);
    EXPECT_EQ(PlanFrames(bad).status().code(), absl::StatusCode::kInvalidArgument);
  };
  refused([](PlanArgs& a) { a.tokens.first = -1; });
  refused([](PlanArgs& a) { a.tokens.count = -1; });
  refused([](PlanArgs& a) { a.heads.first = -1; });
  refused([](PlanArgs& a) { a.heads.count = -1; });
  refused([](PlanArgs& a) { a.align_tokens = 0; });
  refused([](PlanArgs& a) { a.max_payload_bytes = 15; });
  PlanArgs none = good;
  none.tokens.count = 0;
  EXPECT_TRUE(PlanFrames(none)->empty());
  none = good;
  none.k_bytes = 0;  // A plane that does not exist.
  frames = PlanFrames(none);
  for (const FrameRange& frame : *frames) EXPECT_EQ(frame.plane, KvPlane::kV);
}

TEST(TransferPlanTest, SidesWithoutACommonHeadExchangeNothing) {
  const HeadRange none = Intersect({0, 4}, {4, 4});
  EXPECT_EQ(none.count, 0);
  auto frames = PlanFrames(
      {.tokens = {0, 8}, .heads = none, .k_bytes = 8, .v_bytes = 8, .max_payload_bytes = 64});
  ASSERT_TRUE(frames.ok());
  EXPECT_TRUE(frames->empty());
}

TEST(TransferPlanTest, PiecesOfAPoolAreItsMemoryByOffset) {
  KvLayout layout{
      .block_size = 4,
      .groups = {{.num_layers = 2, .num_kv_heads = 3, .k_dim = 8, .v_dim = 12}}};
  auto cache = KvCache::Create(layout, 6);
  ASSERT_TRUE(cache.ok());
  const std::vector<BlockId> blocks = {3, 1, 2, 5};
  int merged = 0;
  for (int32_t layer : {0, 1}) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      for (const TokenRange tokens : {TokenRange{0, 16}, {4, 4}, {3, 6}, {7, 1}}) {
        for (const HeadRange heads : {HeadRange{5, 3}, {6, 1}, {6, 2}}) {
          const FrameRange range{layer, plane, tokens.first, tokens.count, heads.first,
                                 heads.count};
          const auto memory = FrameMemory(**cache, range, blocks, 5);
          const auto pieces = FramePieces(**cache, range, blocks, 5);
          ASSERT_EQ(pieces.size(), memory.size());
          for (size_t i = 0; i < pieces.size(); ++i) {
            EXPECT_EQ((*cache)->base() + pieces[i].offset, memory[i].iov_base);
            EXPECT_EQ(static_cast<size_t>(pieces[i].bytes), memory[i].iov_len);
          }
          if (tokens.count == 4 && heads.count == 3 && pieces.size() == 1) ++merged;
        }
      }
    }
  }
  EXPECT_EQ(merged, 4);  // The three heads of a whole block.
}

TEST(TransferPlanTest, MergesNeighboursInMemory) {
  KvLayout layout{
      .block_size = 4,
      .groups = {
          {.num_layers = 1, .num_kv_heads = 2, .k_dim = 8, .v_dim = 8, .dtype = DType::kF32}}};
  auto cache = KvCache::Create(layout, 4);
  ASSERT_TRUE(cache.ok());
  const std::vector<BlockId> blocks = {3, 1};
  // One whole block: its two heads lie side by side.
  auto memory = FrameMemory(**cache, {0, KvPlane::kV, 0, 4, 0, 2}, blocks, 0);
  ASSERT_EQ(memory.size(), 1u);
  EXPECT_EQ(memory[0].iov_base, (*cache)->HeadBlock(0, KvPlane::kV, 3, 0).data());
  EXPECT_EQ(memory[0].iov_len, 2u * 4 * 8 * 4);
  // Tokens 3..5: the end of block 3 and the start of block 1, for each head.
  memory = FrameMemory(**cache, {0, KvPlane::kK, 3, 3, 0, 2}, blocks, 0);
  ASSERT_EQ(memory.size(), 4u);
  EXPECT_EQ(memory[0].iov_base, (*cache)->HeadBlock(0, KvPlane::kK, 3, 0).data() + 3 * 32);
  EXPECT_EQ(memory[1].iov_base, (*cache)->HeadBlock(0, KvPlane::kK, 1, 0).data());
  EXPECT_EQ(memory[1].iov_len, 64u);
  EXPECT_EQ(memory[3].iov_base, (*cache)->HeadBlock(0, KvPlane::kK, 1, 1).data());
}

}  // namespace
}  // namespace baton
