#include "common/transport/rank_legs.h"

#include <algorithm>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "common/kv_cache/kv_layout.h"
#include "common/transport/transfer_plan.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<int32_t> SizesFor(int32_t kv_heads) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size <= kMaxRanks; ++size) {
    if (CanHold(size, kv_heads)) sizes.push_back(size);
  }
  return sizes;
}

TEST(RankLegsTest, ALegNamesItsHandoffAndItsReceiver) {
  const TicketId handoff{7, 0xF0};
  for (int32_t d = 0; d < kMaxRanks; ++d) {
    EXPECT_EQ(LegOf(handoff, d), (TicketId{7, 0xF0u + d}));
    EXPECT_EQ(HandoffOf(LegOf(handoff, d)), handoff);
  }
}

TEST(RankLegsTest, OnlySizesThatDivideHoldTheHeads) {
  EXPECT_EQ(SizesFor(1), (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(SizesFor(6), (std::vector<int32_t>{1, 2, 3, 6}));
  EXPECT_EQ(SizesFor(8), (std::vector<int32_t>{1, 2, 4, 8}));
  EXPECT_EQ(SizesFor(0), std::vector<int32_t>{});
  EXPECT_FALSE(CanHold(16, 16));
  EXPECT_FALSE(CanHold(RankPlace{2, 2}, 4));
  EXPECT_FALSE(CanHold(RankPlace{-1, 2}, 4));
  EXPECT_TRUE(CanHold(RankPlace{1, 2}, 4));
}

// What all legs into one receiving rank write, frame by frame.
struct LegCase {
  int32_t kv_heads = 1;
  int32_t senders = 1;
  RankPlace receiver;
  int32_t from_block = 16;
  int32_t to_block = 16;
  int32_t first = 0;
  int32_t end = 0;
  int32_t chunk = 1;
  int64_t max_payload = 0;
};

LegCase DrawLegs(Random* random) {
  constexpr int32_t kHeads[] = {1, 2, 3, 4, 5, 6, 8, 12, 16};
  const auto any = [&](const auto& of) { return of[random->Below(std::size(of))]; };
  LegCase c;
  c.kv_heads = any(kHeads);
  c.senders = any(SizesFor(c.kv_heads));
  c.receiver.size = any(SizesFor(c.kv_heads));
  c.receiver.rank = static_cast<int32_t>(random->Below(c.receiver.size));
  c.from_block = 1 << random->Below(6);
  c.to_block = 1 << random->Below(6);
  c.end = 1 + static_cast<int32_t>(random->Below(40));
  // A cached prefix, or what lies behind a window.
  const int32_t window = static_cast<int32_t>(random->Below(12));
  c.first = std::max(TokensBehindWindow(window, c.end), static_cast<int32_t>(random->Below(c.end)));
  c.chunk = 1 + static_cast<int32_t>(random->Below(c.end));
  c.max_payload = 8 + static_cast<int64_t>(random->Below(300));
  return c;
}

// Counts of (plane, token, head) that came.
void Receive(const LegCase& c, RankPlace sender, std::vector<int>* came) {
  const HeadRange heads = Sent(sender, c.receiver, c.kv_heads);
  for (int32_t at = c.first; at < c.end; at += c.chunk) {
    const auto frames = PlanFrames({.tokens = {at, std::min(c.chunk, c.end - at)},
                                    .heads = heads,
                                    .k_bytes = 8,
                                    .v_bytes = 4,
                                    .align_tokens = std::max(c.from_block, c.to_block),
                                    .max_payload_bytes = c.max_payload});
    ASSERT_TRUE(frames.ok()) << frames.status();
    for (const FrameRange& f : *frames) {
      for (int32_t t = f.first_token; t < f.first_token + f.num_tokens; ++t) {
        for (int32_t h = f.first_head; h < f.first_head + f.num_heads; ++h) {
          ++(*came)[((f.plane == KvPlane::kV ? c.end : 0) + t) * c.kv_heads + h];
        }
      }
    }
  }
}

TEST(RankLegsTest, EachHeadOfEachTokenComesOnceToEachReceivingRank) {
  Random random(41);
  for (int i = 0; i < 100'000; ++i) {
    const LegCase c = DrawLegs(&random);
    std::vector<int> came(size_t{2} * c.end * c.kv_heads, 0);
    const uint32_t senders = SendersTo(c.receiver, c.senders, c.kv_heads);
    for (int32_t p = 0; p < c.senders; ++p) {
      const bool sends = Sent({p, c.senders}, c.receiver, c.kv_heads).count > 0;
      ASSERT_EQ(sends, (senders >> p & 1) != 0);
      if (sends) Receive(c, {p, c.senders}, &came);
    }
    const HeadRange own = HeadsOf(c.receiver.rank, c.receiver.size, c.kv_heads);
    for (size_t k = 0; k < came.size(); ++k) {
      const auto head = static_cast<int32_t>(k) % c.kv_heads;
      const int32_t token = static_cast<int32_t>(k) / c.kv_heads % c.end;
      const bool wanted =
          head >= own.first && head < own.first + own.count && token >= c.first;
      ASSERT_EQ(came[k], wanted ? 1 : 0)
          << c.senders << " ranks to rank " << c.receiver.rank << " of " << c.receiver.size << ", "
          << c.kv_heads << " heads: head " << head << " of token " << token;
    }
  }
}

TEST(RankLegsTest, RanksThatHoldTheSameHeadShareTheWork) {
  for (const int32_t kv_heads : {1, 2, 4, 8}) {
    for (const int32_t from : SizesFor(kv_heads)) {
      for (const int32_t to : SizesFor(kv_heads)) {
        if (to < from) continue;
        std::vector<int32_t> sent(from);
        for (int32_t p = 0; p < from; ++p) {
          for (int32_t d = 0; d < to; ++d) sent[p] += Sent({p, from}, {d, to}, kv_heads).count;
        }
        if (to % from != 0) continue;
        EXPECT_EQ(sent, std::vector<int32_t>(from, sent[0]))
            << from << " to " << to << ", " << kv_heads << " heads";
      }
    }
  }
}

}  // namespace
}  // namespace baton
