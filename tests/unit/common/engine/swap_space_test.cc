#include "common/engine/swap_space.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Sequences 1 (older) and 2 decode; the pool is full, and sequence 1 wants a block.
class SwapSpaceTest : public EngineHarness {
 protected:
  void Crowd(int32_t swap_blocks) {
    Create({.chunk_tokens = 8, .swap_blocks = swap_blocks}, 5);
    engine_->Add(Decoding(1, 8));
    engine_->Add(Decoding(2, 10));
  }
  static std::vector<int32_t> Sources(const std::vector<BlockMove>& moves) {
    std::vector<int32_t> blocks;
    for (const BlockMove& move : moves) blocks.push_back(move.source);
    return blocks;
  }
  static std::vector<int32_t> Destinations(const std::vector<BlockMove>& moves) {
    std::vector<int32_t> blocks;
    for (const BlockMove& move : moves) blocks.push_back(move.destination);
    return blocks;
  }
};

TEST_F(SwapSpaceTest, APreemptedSequenceIsCopiedOutAndItsBlocksAreHeldUntilTheStepEnds) {
  Crowd(4);
  const std::vector<BlockId> blocks = engine_->FindTable(2)->blocks();
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(Sources(plan->swap_out), blocks);
  EXPECT_THAT(plan->swap_in, IsEmpty());
  EXPECT_THAT(plan->rows, IsEmpty());  // Sequence 1 waits for the blocks.
  EXPECT_EQ(pool_->counts().draining, 3);
  EXPECT_EQ(engine_->LeavingTables().size(), 1u);
  EXPECT_EQ(engine_->num_swaps(), 1);
  Finish();
  EXPECT_EQ(pool_->counts().draining, 0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
}

TEST_F(SwapSpaceTest, ComesBackToOtherBlocksAndGoesOnWithoutComputingAgain) {
  Crowd(4);
  const std::vector<BlockMove> out = Start()->swap_out;
  Finish();
  Start();
  ASSERT_EQ(engine_->Remove(1), nullptr);
  Finish();  // Sequence 1 is gone: there is room.
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(Sources(plan->swap_in), Destinations(out));
  EXPECT_THAT(Calls(*plan), ElementsAre(2));
  EXPECT_THAT(Contexts(*plan), ElementsAre(10));
  EXPECT_THAT(Lengths(*plan), ElementsAre(1));
  const auto& table = plan->rows[0].block_table;
  EXPECT_EQ(Destinations(plan->swap_in), std::vector<int32_t>(table.begin(), table.begin() + 3));
  Finish();
  EXPECT_TRUE(engine_->LeavingTables().empty());
}

TEST_F(SwapSpaceTest, WithoutRoomItIsComputedAgain) {
  Crowd(2);
  const StepPlan* plan = Start();
  EXPECT_THAT(plan->swap_out, IsEmpty());
  EXPECT_THAT(Calls(*plan), ElementsAre(1));
  EXPECT_EQ(engine_->num_preemptions(), 1);
  EXPECT_EQ(engine_->num_swaps(), 0);
}

TEST_F(SwapSpaceTest, ASequenceThatIsRemovedWhileItsBlocksAreWrittenComesBackWithTheStep) {
  Crowd(4);
  Start();
  Finish();
  Start();
  engine_->Remove(1);
  Finish();
  ASSERT_FALSE(Start()->swap_in.empty());
  EXPECT_EQ(engine_->Remove(2), nullptr);
  EXPECT_GT(pool_->counts().draining, 0);
  const auto progress = Finish();
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].call, 2u);
  EXPECT_NE(progress[0].released, nullptr);
}

TEST_F(SwapSpaceTest, AFailedStepsMovesAreComputedAgain) {
  Crowd(4);
  Start();
  engine_->OnStepDone({.step = engine_->step_in_flight()->step,
                       .status = absl::InternalError("out of luck"),
                       .rows = {}},
                      now_);
  Start();
  engine_->Remove(1);
  Finish();
  const StepPlan* plan = Start();
  EXPECT_THAT(plan->swap_in, IsEmpty());
  EXPECT_THAT(Contexts(*plan), ElementsAre(8));  // Two blocks are still cached.
}

TEST_F(SwapSpaceTest, ARemovedSequenceGivesItsHostBlocksBack) {
  Crowd(3);
  Start();
  Finish();
  EXPECT_NE(engine_->Remove(2), nullptr);
  engine_->Add(Decoding(3, 8));
  while (engine_->num_swaps() < 2) {
    ASSERT_NE(Start(), nullptr);
    Finish();
  }
}

}  // namespace
}  // namespace baton
