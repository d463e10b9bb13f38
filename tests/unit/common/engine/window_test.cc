// Blocks that a sliding window has passed: when they go, and what never waits for them.

#include <algorithm>

#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;

constexpr int32_t kWindow = 12;

class WindowTest : public EngineHarness {
 protected:
  void Windowed(const EngineOptions& options, int32_t num_blocks, int32_t window = kWindow) {
    Create(options, num_blocks, kBlockSize, window);
  }
  int32_t NumHeld() const { return pool_->num_blocks() - pool_->num_available(); }
  // The entries that the row's first query sees, [context_len - window + 1, context_len], and those
  // it writes are blocks; no other entry before them is.
  static void ExpectVisible(const StepRow& row, int32_t window = kWindow) {
    const int32_t first_seen = std::max(0, row.context_len - window + 1);
    for (size_t i = 0; i < row.block_table.size(); ++i) {
      const bool is_seen = static_cast<int32_t>(i + 1) * kBlockSize > first_seen;
      EXPECT_EQ(row.block_table[i] >= 0, is_seen) << "entry " << i << " at " << row.context_len;
    }
  }
};

TEST_F(WindowTest, ALongAnswerHoldsTheWindowsBlocksAndNoMore) {
  Windowed({.chunk_tokens = 8}, 64);
  engine_->Add(Decoding(1, 6));
  int32_t peak = 0;
  for (int32_t i = 0; i < 200; ++i) {
    ExpectVisible(Start()->rows[0]);
    peak = std::max(peak, NumHeld());
    Finish();
  }
  EXPECT_LE(peak, kWindow / kBlockSize + 1);
  EXPECT_GE(peak, kWindow / kBlockSize);
}

TEST_F(WindowTest, WithoutAWindowALongAnswerHoldsAllOfItself) {
  Windowed({.chunk_tokens = 8}, 64, /*window=*/0);
  engine_->Add(Decoding(1, 6));
  for (int32_t i = 0; i < 200; ++i) {
    EXPECT_THAT(Start()->rows[0].block_table, Each(Ge(0)));
    Finish();
  }
  EXPECT_EQ(NumHeld(), pool_->BlocksFor(206));
}

TEST_F(WindowTest, APromptGivesBlocksBackBetweenItsChunks) {
  Windowed({.chunk_tokens = 8}, 64);
  engine_->Add(Prompt(1, 64));
  std::vector<int32_t> held;
  for (int32_t i = 0; i < 8; ++i) {
    const StepPlan* plan = Start();
    ExpectVisible(plan->rows[0]);
    held.push_back(NumHeld());
    Finish();
  }
  EXPECT_THAT(held, ElementsAre(16, 16, 15, 13, 11, 9, 7, 5));
  EXPECT_EQ(NumHeld(), 3);  // Of the 11 tokens that the first one sampled sees.
}

TEST_F(WindowTest, NothingGoesWhileTheStepThatReadsItRuns) {
  Windowed({.chunk_tokens = 8}, 64);
  engine_->Add(Prompt(1, 64));
  for (int32_t i = 0; i < 8; ++i) {
    const StepPlan* plan = Start();
    const std::vector<BlockId> table = plan->rows[0].block_table;
    for (BlockId id : table) {
      if (id < 0) continue;
      EXPECT_NE(pool_->state(id), BlockState::kFree);
      EXPECT_NE(pool_->state(id), BlockState::kCached);
    }
    Finish();
  }
}

TEST_F(WindowTest, ARemovedSequenceKeepsItsBlocksUntilTheStepHasEnded) {
  Windowed({.chunk_tokens = 8}, 64);
  engine_->Add(Prompt(1, 40));
  for (int32_t i = 0; i < 3; ++i) Start(), Finish();
  Start();
  const int32_t held = NumHeld();
  EXPECT_EQ(engine_->Remove(1), nullptr);
  EXPECT_EQ(NumHeld(), held);
  EXPECT_EQ(pool_->counts().draining, held - 3) << "full blocks stay findable";
  EXPECT_EQ(pool_->counts().ready, 3);
  Finish();
  EXPECT_EQ(NumHeld(), 0);
}

TEST_F(WindowTest, ACachedPrefixIsHeldOnlyAsFarAsItIsSeen) {
  Windowed({.chunk_tokens = 64}, 64);
  engine_->Add(Prompt(1, 41));
  Start();
  Finish(kEos);
  ASSERT_EQ(NumHeld(), 0);
  auto again = New(1, 41);
  again->blocks = pool_->Match("t", again->tokens, 40);
  ASSERT_EQ(again->blocks.num_sealed(), 10);
  ASSERT_TRUE(pool_->Grow(again->blocks, 1));
  again->num_computed = 40;
  engine_->Add(std::move(again));
  EXPECT_EQ(NumHeld(), 4);  // [28, 41): tokens 29 and later are seen.
  ExpectVisible(Start()->rows[0]);
}

TEST_F(WindowTest, OneWithoutBlocksTakesACachedPrefixOnlyAsFarAsItIsSeen) {
  Windowed({.chunk_tokens = 64}, 64);
  engine_->Add(Prompt(1, 41));
  Start();
  Finish(kEos);
  ASSERT_EQ(NumHeld(), 0);
  engine_->Add(New(1, 41));
  EXPECT_THAT(Contexts(*Start()), ElementsAre(40));
  EXPECT_EQ(NumHeld(), 4);
}

TEST_F(WindowTest, OneWithoutBlocksWaitsForAllOfThem) {
  Windowed({.chunk_tokens = 8}, 8);
  BlockTable others;
  ASSERT_TRUE(pool_->Grow(others, 4));
  engine_->Add(New(1, 20));
  EXPECT_EQ(Start(), nullptr);
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(engine_->queued_tokens(), 20);
  others.Release();
  EXPECT_THAT(Contexts(*Start()), ElementsAre(0));
  EXPECT_EQ(engine_->num_running(), 1u);
}

// ---- Preemption --------------------------------------------------------------------------------

// Sequence 1 (older) decodes without end, sequence 3 has decoded beyond its window when the pool is
// full.
class WindowPreemptionTest : public WindowTest {
 protected:
  void Crowd(int32_t swap_blocks, int32_t max_batch_sequences = 8) {
    Windowed({.chunk_tokens = 64,
              .max_batch_sequences = max_batch_sequences,
              .swap_blocks = swap_blocks},
             16);
    engine_->Add(Decoding(1, 6));
    engine_->Add(Decoding(3, 30));
    others_ = {};
    ASSERT_TRUE(pool_->Grow(others_, pool_->num_available() - 1));
    while (engine_->num_preempted() == 0) {
      ASSERT_NE(Start(), nullptr);
      if (engine_->num_preempted() == 0) Finish();
    }
  }
  BlockTable others_;
};

TEST_F(WindowPreemptionTest, OnlyWhatIsSeenIsSwappedOutAndComesBackToTheSamePlaces) {
  Crowd(4);
  const StepPlan out = *engine_->step_in_flight();
  EXPECT_LE(out.swap_out.size(), 4u);
  EXPECT_GE(out.swap_out.size(), 3u);
  EXPECT_EQ(engine_->num_swaps(), 1);
  Finish();
  others_.Release();
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(plan->swap_in.size(), out.swap_out.size());
  const StepRow& row = plan->rows.back();
  ASSERT_EQ(row.sequence.counter, 3u);
  ExpectVisible(row);
  const auto first = std::ranges::find_if(row.block_table, [](BlockId id) { return id >= 0; });
  for (size_t i = 0; i < out.swap_out.size(); ++i) {
    EXPECT_EQ(plan->swap_in[i].source, out.swap_out[i].destination);
    EXPECT_EQ(plan->swap_in[i].destination, first[i]);
  }
  // It goes on as if nothing had been.
  for (int32_t i = 0; i < 40; ++i) {
    Finish();
    for (const StepRow& next : Start()->rows) ExpectVisible(next);
  }
}

TEST_F(WindowPreemptionTest, WithoutSwapItIsComputedFromItsStart) {
  Crowd(0);
  if (engine_->step_in_flight() != nullptr) Finish();
  EXPECT_EQ(engine_->num_swaps(), 0);
  others_.Release();
  // Its first blocks are no longer cached, or were never findable.
  BlockTable flush;
  ASSERT_TRUE(pool_->Grow(flush, pool_->num_available()));
  flush.Release();
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  const StepRow& row = plan->rows.front();
  ASSERT_EQ(row.sequence.counter, 3u);
  EXPECT_EQ(row.context_len, 0);
  EXPECT_THAT(row.block_table, Each(Ge(0)));
  Finish();
  for (const StepRow& next : Start()->rows) ExpectVisible(next);
}

TEST_F(WindowPreemptionTest, AfterAFailedMoveInItIsComputedFromItsStart) {
  Crowd(4, /*max_batch_sequences=*/1);
  Finish();
  others_.Release();
  engine_->Add(Decoding(2, 6));  // Its turn comes before that of sequence 3.
  const StepPlan* plan = Start();
  ASSERT_FALSE(plan->swap_in.empty());
  ASSERT_THAT(Calls(*plan), ElementsAre(2));
  engine_->OnStepDone(
      {.step = plan->step, .status = absl::InternalError("out of luck"), .rows = {}}, now_);
  EXPECT_EQ(engine_->num_preempted(), 1u);
  ASSERT_NE(engine_->Remove(1), nullptr);
  BlockTable flush;
  ASSERT_TRUE(pool_->Grow(flush, pool_->num_available()));
  flush.Release();
  plan = Start();
  ASSERT_NE(plan, nullptr);
  EXPECT_THAT(Calls(*plan), ElementsAre(3));
  EXPECT_THAT(Contexts(*plan), ElementsAre(0));
}

}  // namespace
}  // namespace baton
