#include "common/transport/push_plan.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

class PushPlanTest : public testing::Test {
 protected:
  PushPlanTest() : epochs_(4) {
    const KvLayout layout{.block_size = 8,
                          .groups = {{.num_layers = 2, .num_kv_heads = 4, .k_dim = 4, .v_dim = 6}}};
    cache_ = *KvCache::Create(layout, 4);
    options_ = {.incarnation = 9, .cache = cache_.get(), .epochs = &epochs_};
  }
  StartArgs Start() const {
    return {.ticket = {1, 1},
            .sender = 9,
            .receiver = 8,
            .blocks = {0, 1, 2},
            .first_token = 4,
            .num_tokens = 20};
  }
  BlockEpochs epochs_;
  std::unique_ptr<KvCache> cache_;
  TransportOptions options_;
};

TEST_F(PushPlanTest, SendsTheHeadsBothSidesHold) {
  options_.place = {1, 3};  // This rank holds heads 4..7 of the model, the receiver 6..11.
  options_.kv_heads = 12;
  StartArgs start = Start();
  start.receiver_place = {1, 2};
  auto frames = PlanPush(options_, start, {{1, 1}, 1, 4, 16}, 16);
  ASSERT_TRUE(frames.ok()) << frames.status();
  ASSERT_EQ(frames->size(), 2u);
  EXPECT_EQ((*frames)[0], (FrameRange{1, KvPlane::kK, 4, 16, 6, 2}));
  EXPECT_EQ((*frames)[1], (FrameRange{1, KvPlane::kV, 4, 16, 6, 2}));
}

// So most of what is copied or written at once is whole blocks.
TEST_F(PushPlanTest, FramesEndWhereBlocksOfTheSideWithTheLargerOnesEnd) {
  options_.max_frame_bytes = 9 * 4 * 16;  // Nine tokens of K.
  StartArgs start = Start();
  start.num_tokens = 24;
  const auto ends = [&](int32_t receiver_block_size) {
    std::vector<int32_t> all;
    const auto frames = PlanPush(options_, start, {{1, 1}, 0, 4, 20}, receiver_block_size);
    for (const FrameRange& frame : frames.value()) {
      if (frame.plane == KvPlane::kK) all.push_back(frame.first_token + frame.num_tokens);
    }
    return all;
  };
  EXPECT_EQ(ends(4), (std::vector<int32_t>{8, 16, 24}));
  EXPECT_EQ(ends(8), (std::vector<int32_t>{8, 16, 24}));
  EXPECT_EQ(ends(16), (std::vector<int32_t>{13, 16, 24}));
}

TEST_F(PushPlanTest, RefusesAPushOutsideTheTicketOrTheModel) {
  for (PushArgs push : {PushArgs{{1, 1}, 2, 4, 1}, PushArgs{{1, 1}, -1, 4, 1},
                        PushArgs{{1, 1}, 0, 3, 1}, PushArgs{{1, 1}, 0, 4, 17},
                        PushArgs{{1, 1}, 0, 4, -1}, PushArgs{{1, 1}, 0, 5, INT32_MAX}}) {
    EXPECT_EQ(PlanPush(options_, Start(), push, 8).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(PushPlanTest, DoesNotLookAtBlocksBeforeTheFirstToken) {
  StartArgs start = Start();
  start.first_token = 9;
  start.blocks = {-1, 1, 2};
  EXPECT_TRUE(CheckStart(options_, start).ok());
  start.first_token = 7;
  EXPECT_FALSE(CheckStart(options_, start).ok());
}

TEST_F(PushPlanTest, RefusesAStartThatCannotBe) {
  EXPECT_TRUE(CheckStart(options_, Start()).ok());
  StartArgs start = Start();
  start.blocks = {0, 1, 4};
  EXPECT_FALSE(CheckStart(options_, start).ok());
  start = Start();
  start.num_tokens = 25;
  EXPECT_FALSE(CheckStart(options_, start).ok());
  start = Start();
  start.sender = 10;
  EXPECT_FALSE(CheckStart(options_, start).ok());
  start = Start();
  start.ticket = {};
  EXPECT_FALSE(CheckStart(options_, start).ok());
  start = Start();
  start.receiver = 0;
  EXPECT_FALSE(CheckStart(options_, start).ok());
  start = Start();
  start.first_token = -1;
  EXPECT_FALSE(CheckStart(options_, start).ok());
  start.first_token = start.num_tokens + 1;
  EXPECT_FALSE(CheckStart(options_, start).ok());
  for (const RankPlace place : {RankPlace{2, 2}, {-1, 2}, {0, 3}, {0, 0}, {0, 16}}) {
    start = Start();
    start.receiver_place = place;
    EXPECT_EQ(CheckStart(options_, start).code(), absl::StatusCode::kInvalidArgument);
  }
  start = Start();
  start.first_token = start.num_tokens;  // Nothing to send.
  EXPECT_TRUE(CheckStart(options_, start).ok());
}

}  // namespace
}  // namespace baton
