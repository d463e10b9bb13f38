#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

class PreemptionTest : public EngineHarness {
 protected:
  // Blocks that somebody outside the engine holds, until released.
  BlockTable TakeAllBut(int32_t count) {
    BlockTable table;
    EXPECT_TRUE(pool_->Grow(table, pool_->num_available() - count));
    return table;
  }
};

TEST_F(PreemptionTest, TheYoungestGivesWay) {
  engine_->Add(Decoding(1, 4));
  engine_->Add(Decoding(2, 4));
  engine_->Add(Decoding(3, 8));
  BlockTable others = TakeAllBut(0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1, 2));  // Each wants a second block; 3 gives its two.
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(engine_->num_preemptions(), 1);
  EXPECT_EQ(pool_->num_available(), 0);
}

TEST_F(PreemptionTest, TheYoungestPreemptsItself) {
  engine_->Add(Decoding(1, 6));  // Has room in its second block.
  engine_->Add(Decoding(2, 4));
  BlockTable others = TakeAllBut(0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  EXPECT_EQ(engine_->num_preempted(), 1u);
}

TEST_F(PreemptionTest, OneThatIsAloneSitsOutInsteadOfBeingPreempted) {
  engine_->Add(Decoding(1, 4));
  BlockTable others = TakeAllBut(0);
  EXPECT_EQ(Start(), nullptr);
  EXPECT_EQ(engine_->num_preempted(), 0u);
  others.Release();
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
}

TEST_F(PreemptionTest, AReservationThatComesBackSparesTheRunning) {
  std::vector<std::pair<uint64_t, bool>> asked;
  bool comes_back = true;
  engine_->set_reclaim([&](const AgeKey& needy, bool alone) {
    asked.emplace_back(needy.id.counter, alone);
    return comes_back;
  });
  engine_->Add(Decoding(1, 4));
  engine_->Add(Decoding(2, 6));
  BlockTable others = TakeAllBut(0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(2));  // 1 sits out, nobody is preempted.
  EXPECT_THAT(asked, ElementsAre(std::pair(1u, false)));
  Finish();
  comes_back = false;
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  EXPECT_EQ(engine_->num_preempted(), 1u);
}

TEST_F(PreemptionTest, AReservationThatComesBackAtOnceIsUsedInTheSameStep) {
  BlockTable others;
  engine_->set_reclaim([&](const AgeKey&, bool) {
    others.Release();
    return true;
  });
  engine_->Add(Decoding(1, 4));
  engine_->Add(Decoding(2, 6));
  others = TakeAllBut(0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1, 2));
  EXPECT_EQ(engine_->num_preempted(), 0u);
}

TEST_F(PreemptionTest, WhatIsPreemptedAsksForReservationsAndResumesIfTheyComeBackAtOnce) {
  for (const bool at_once : {true, false}) {
    Create({.chunk_tokens = 8}, 8);
    BlockTable others;
    std::vector<std::pair<uint64_t, bool>> asked;
    engine_->Add(Decoding(1, 6));
    engine_->Add(Decoding(2, 8));
    others = TakeAllBut(0);
    EXPECT_THAT(Calls(*Start()), ElementsAre(1));
    Finish();
    ASSERT_EQ(engine_->num_preempted(), 1u);
    engine_->set_reclaim([&](const AgeKey& needy, bool alone) {
      asked.emplace_back(needy.id.counter, alone);
      if (at_once) others.Release();
      return true;
    });
    Start();
    EXPECT_THAT(asked, ElementsAre(std::pair(2u, false)));
    EXPECT_EQ(engine_->num_preempted(), at_once ? 0u : 1u);
    engine_.reset();
  }
}

TEST_F(PreemptionTest, APreemptedSequenceIsComputedAgainAndEmitsNothingTwice) {
  Create({.chunk_tokens = 4}, 6);
  engine_->Add(Decoding(1, 8));
  engine_->Add(Decoding(2, 10));  // 2 + 3 blocks of 6.
  Start();                        // 1 takes the last block.
  Finish(61);
  Start();
  Finish(62);  // 2 has emitted 50, 61, 62: 13 tokens, wants a fourth block.
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(engine_->queued_tokens(), 12);
  TakeAllBut(1).Release();  // Evicts its last two blocks.
  Finish(kEos);             // 1 ends; what the engine gave back is destroyed.

  std::vector<int32_t> recomputed;
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(engine_->num_preempted(), 0u);
  int32_t next = plan->rows[0].context_len;
  EXPECT_EQ(next, 4);  // Its first block was still cached.
  while (!plan->rows[0].sample) {
    EXPECT_EQ(plan->rows[0].context_len, next);
    next += static_cast<int32_t>(plan->rows[0].tokens.size());
    EXPECT_FALSE(Finish()[0].output.has_value());
    plan = Start();
  }
  EXPECT_EQ(plan->rows[0].tokens.back(), 62);
  EXPECT_EQ(plan->rows[0].num_emitted, 3);
  const auto progress = Finish(63);
  EXPECT_EQ(progress[0].output->token, 63);
  EXPECT_EQ(progress[0].output->position, 13);
}

TEST_F(PreemptionTest, WhatIsPreemptedWaitsForRoomForTheRunningToo) {
  Create({.chunk_tokens = 8}, 8);
  engine_->Add(Decoding(1, 6));
  engine_->Add(Decoding(2, 8));
  BlockTable others = TakeAllBut(0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  Finish();
  EXPECT_EQ(engine_->num_preempted(), 1u);
  others.Release();
  others = TakeAllBut(3);  // 2 needs 3 blocks for its 9 tokens, 1 may want one: too few.
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  Finish();
  others.Release();
  others = TakeAllBut(4);
  EXPECT_EQ(Start()->rows.size(), 2u);
  EXPECT_EQ(engine_->num_preempted(), 0u);
}

TEST_F(PreemptionTest, TheOldestPreemptedResumesFirst) {
  Create({.chunk_tokens = 8}, 9);
  engine_->Add(Decoding(1, 4));
  engine_->Add(Decoding(2, 8));
  engine_->Add(Decoding(3, 4));
  BlockTable others = TakeAllBut(0);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));  // 3's one block, then 2 gives way itself.
  EXPECT_EQ(engine_->num_preempted(), 2u);
  Finish(kEos);
  others.Release();
  others = TakeAllBut(3);  // Enough for 2, then no longer for 3.
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(Calls(*plan), std::vector<uint64_t>{2});
  EXPECT_EQ(engine_->num_preempted(), 1u);
}

TEST_F(PreemptionTest, APreemptedSequenceCanBeRemoved) {
  engine_->Add(Decoding(1, 6));
  engine_->Add(Decoding(2, 4));
  BlockTable others = TakeAllBut(0);
  Start();
  auto sequence = engine_->Remove(2);
  ASSERT_NE(sequence, nullptr);
  EXPECT_EQ(sequence->blocks.size(), 0);
  EXPECT_EQ(engine_->num_preempted(), 0u);
}

}  // namespace
}  // namespace baton
