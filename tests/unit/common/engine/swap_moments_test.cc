// A swapped sequence at every moment of its way out and back: what is removed, fails or finds no
// room there holds neither blocks nor host blocks for longer than somebody copies them.

#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::SizeIs;

class SwapMomentsTest : public EngineHarness {
 protected:
  // Sequences 1 and 2 (older) decode, one row a step; sequence 3, with so many tokens computed,
  // has been preempted: its move out is in the step in flight. `others_` holds the rest of the
  // pool, and those that run have room to go on.
  void MovingOut(int32_t swap_blocks, int32_t computed = 10) {
    others_ = {};
    Create({.chunk_tokens = 8, .max_batch_sequences = 1, .swap_blocks = swap_blocks}, 24);
    engine_->Add(Decoding(1, 4));
    engine_->Add(Decoding(2, 5));
    engine_->Add(Decoding(3, computed));
    ASSERT_TRUE(pool_->Grow(others_, pool_->num_available()));
    ASSERT_NE(Start(), nullptr);  // Sequence 1 wants its second block.
    ASSERT_EQ(engine_->num_swaps(), 1);
    ASSERT_EQ(engine_->num_preempted(), 1u);
  }
  // Its blocks are written by the step in flight, whose only row is sequence 2's.
  void MovingIn(int32_t swap_blocks, int32_t computed = 10) {
    MovingOut(swap_blocks, computed);
    Finish();
    ASSERT_THAT(Calls(*Start()), ElementsAre(1));
    Finish();
    others_.Release();
    EvictAll();
    const StepPlan* plan = Start();
    ASSERT_FALSE(plan->swap_in.empty());
    ASSERT_THAT(Calls(*plan), ElementsAre(2));
  }
  void EvictAll() {
    BlockTable all;
    ASSERT_TRUE(pool_->Grow(all, pool_->num_available()));
  }
  std::vector<SequenceProgress> Fail() {
    return engine_->OnStepDone({.step = engine_->step_in_flight()->step,
                                .status = absl::InternalError("out of luck"),
                                .rows = {}},
                               now_);
  }
  // Runs steps until a row of the call is in one, which it returns.
  const StepRow* RowOf(uint64_t call) {
    for (int i = 0; i < 20; ++i) {
      const StepPlan* plan = engine_->step_in_flight();
      if (plan == nullptr) plan = Start();
      if (plan == nullptr) return nullptr;
      for (const StepRow& row : plan->rows) {
        if (row.sequence.counter == call) return &row;
      }
      Finish();
    }
    return nullptr;
  }
  // Fills the pool and runs until sequence 3, the youngest, has to give way again.
  void Crowd() {
    ASSERT_TRUE(pool_->Grow(others_, pool_->num_available()));
    while (engine_->num_preempted() == 0) {
      if (engine_->step_in_flight() != nullptr) Finish();
      Start();
    }
  }
  StepPlan SwapOutAgain() {
    Crowd();
    EXPECT_EQ(engine_->num_swaps(), 2);
    return engine_->step_in_flight() == nullptr ? StepPlan{} : *engine_->step_in_flight();
  }
  int32_t NumHeld() const { return pool_->num_blocks() - pool_->num_available(); }

  BlockTable others_;
};

// ---- On the way out ----------------------------------------------------------------------------

TEST_F(SwapMomentsTest, RemovedOnItsWayOutItIsGivenBackAtOnceAndItsBlocksStayUntilTheyAreRead) {
  MovingOut(3);
  EXPECT_EQ(pool_->counts().draining, 3);
  EXPECT_NE(engine_->Remove(3), nullptr);
  EXPECT_EQ(pool_->counts().draining, 3);
  EXPECT_THAT(engine_->LeavingTables(), SizeIs(1));
  Finish();
  EXPECT_EQ(pool_->counts().draining, 0);
  EXPECT_THAT(engine_->LeavingTables(), IsEmpty());
}

TEST_F(SwapMomentsTest, AStepThatFailsAfterItWasRemovedOnItsWayOutEndsLikeAnyOther) {
  MovingOut(3);
  EXPECT_NE(engine_->Remove(3), nullptr);
  Fail();
  EXPECT_EQ(engine_->num_preempted(), 0u);
  EXPECT_EQ(pool_->counts().draining, 0);
}

TEST_F(SwapMomentsTest, AMoveOutThatFailedHoldsNoHostBlocks) {
  MovingOut(3);
  Fail();
  EXPECT_EQ(engine_->num_preempted(), 1u);
  others_.Release();
  engine_->Add(Decoding(4, 8));
  ASSERT_TRUE(pool_->Grow(others_, pool_->num_available()));
  ASSERT_NE(Start(), nullptr);  // Sequence 1 still wants its block: 4 gives way, 3 is still away.
  EXPECT_EQ(engine_->num_preempted(), 2u);
  EXPECT_EQ(engine_->num_swaps(), 2);
}

// ---- Out ---------------------------------------------------------------------------------------

TEST_F(SwapMomentsTest, ALaterStepThatFailsLeavesItsCopyAlone) {
  MovingOut(3);
  Finish();
  ASSERT_THAT(Calls(*Start()), ElementsAre(1));
  Fail();
  others_.Release();
  EvictAll();
  const StepRow* row = RowOf(3);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->context_len, 10);
}

TEST_F(SwapMomentsTest, WhatCameBackFromThePrefixCacheKeepsNoHostCopy) {
  MovingOut(4, 8);
  Finish();
  others_.Release();  // Its two blocks are still cached.
  const StepRow* row = RowOf(3);
  ASSERT_NE(row, nullptr);
  EXPECT_THAT(engine_->step_in_flight()->swap_in, IsEmpty());
  EXPECT_EQ(row->context_len, 8);
  Finish();
  // It goes out again, with 9 to 12 tokens: three blocks of the host's four.
  const StepPlan out = SwapOutAgain();
  EXPECT_THAT(out.swap_out, SizeIs(3));
  Finish();
  others_.Release();
  EvictAll();
  ASSERT_NE(RowOf(3), nullptr);
  EXPECT_EQ(engine_->num_preempted(), 0u);
}

TEST_F(SwapMomentsTest, WhatCameBackFromThePrefixCacheAndFindsNoRoomLaterIsComputedAgain) {
  MovingOut(2, 8);
  Finish();
  others_.Release();
  ASSERT_NE(RowOf(3), nullptr);
  Finish();
  Crowd();  // Three blocks do not fit into the host's two.
  EXPECT_EQ(engine_->num_swaps(), 1);
  if (engine_->step_in_flight() != nullptr) Finish();
  others_.Release();
  EvictAll();
  const StepRow* row = RowOf(3);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->context_len, 0);
}

// ---- On the way in -----------------------------------------------------------------------------

TEST_F(SwapMomentsTest, RemovedOnItsWayInItsBlocksAreHeldUntilTheyAreWrittenThoughItIsNoRow) {
  MovingIn(3);
  const int32_t held = NumHeld();
  EXPECT_EQ(engine_->Remove(3), nullptr);
  EXPECT_EQ(NumHeld(), held);
  EXPECT_EQ(pool_->counts().draining, 3);
  ASSERT_NE(engine_->FindTable(3), nullptr);
  auto progress = Finish();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[1].call, 3u);
  EXPECT_TRUE(progress[1].status.ok());
  ASSERT_NE(progress[1].released, nullptr);
  progress.clear();
  EXPECT_EQ(NumHeld(), held - 3);
  EXPECT_EQ(engine_->FindTable(3), nullptr);
  // Once.
  ASSERT_NE(Start(), nullptr);
  for (const SequenceProgress& next : Finish()) EXPECT_NE(next.call, 3u);
}

TEST_F(SwapMomentsTest, RemovedOnItsWayInOfAStepThatFailsItComesBackWithTheStep) {
  MovingIn(3);
  EXPECT_EQ(engine_->Remove(3), nullptr);
  const auto progress = Fail();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[1].call, 3u);
  EXPECT_NE(progress[1].released, nullptr);
  EXPECT_EQ(engine_->num_preempted(), 0u);
}

TEST_F(SwapMomentsTest, AMoveInThatFailedHoldsNothingAndAllOfItIsComputedAgain) {
  MovingIn(3);
  Fail();  // Sequence 2, its row, goes with it.
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(NumHeld(), engine_->FindTable(1)->size());
  EXPECT_EQ(engine_->FindTable(3)->size(), 0);
  EXPECT_EQ(engine_->queued_tokens(), 10);
  const StepRow* row = RowOf(3);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->context_len, 0);
}

// ---- Back --------------------------------------------------------------------------------------

TEST_F(SwapMomentsTest, OnceItIsBackItCanBeRemovedAtOnce) {
  MovingIn(3);
  Finish();
  EXPECT_NE(engine_->Remove(3), nullptr);
}

TEST_F(SwapMomentsTest, OnceItIsBackItsHostBlocksAreFree) {
  MovingIn(5);
  Finish();
  const StepPlan out = SwapOutAgain();
  EXPECT_GE(out.swap_out.size(), 3u);
  Finish();
  others_.Release();
  EvictAll();
  while (engine_->num_preempted() > 0) {
    const StepPlan* plan = Start();
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(plan->swap_in.size(), out.swap_out.size());
    for (size_t i = 0; i < out.swap_out.size(); ++i) {
      EXPECT_EQ(plan->swap_in[i].source, out.swap_out[i].destination);
    }
    Finish();
  }
}

TEST_F(SwapMomentsTest, OnceItIsBackItsTableGrowsAndItsPrefixCanBeFound) {
  MovingIn(3);
  Finish();
  for (int32_t context = 10; context < 18; ++context) {
    const StepRow* row = RowOf(3);
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->context_len, context);
    EXPECT_EQ(static_cast<int32_t>(row->block_table.size()), pool_->BlocksFor(context + 1));
    EXPECT_THAT(row->block_table, Each(Ge(0)));
    Finish();
  }
  EXPECT_EQ(pool_->Match("t", New(3, 10)->tokens, 9).size(), 2);
}

// ---- The space itself --------------------------------------------------------------------------

TEST_F(SwapMomentsTest, WhatHasNothingComputedIsNotMoved) {
  SwapSpace space(4, *pool_);
  auto sequence = Prompt(1, 8);
  EXPECT_FALSE(space.MoveOut(*sequence));
  EXPECT_EQ(sequence->blocks.size(), 2);
  EXPECT_FALSE(space.frees_soon());
  EXPECT_THAT(space.moving_out(), IsEmpty());
}

TEST_F(SwapMomentsTest, AMoveInIsWorthAStepOfItsOwn) {
  SwapSpace space(4, *pool_);
  auto sequence = Decoding(1, 8);
  ASSERT_TRUE(space.MoveOut(*sequence));
  StepPlan out;
  EXPECT_TRUE(space.AddTo(out));
  space.OnStepDone();
  ASSERT_TRUE(pool_->Grow(sequence->blocks, 3));
  space.MoveIn(*sequence);
  EXPECT_TRUE(space.IsMovingIn(1));
  EXPECT_EQ(space.counts().free, 2);  // The runner has yet to read them.
  StepPlan in;
  EXPECT_TRUE(space.AddTo(in));
  EXPECT_THAT(in.swap_out, IsEmpty());
  space.OnStepDone();
  EXPECT_EQ(space.counts().free, 4);
  StepPlan none;
  EXPECT_FALSE(space.AddTo(none));
}

}  // namespace
}  // namespace baton
