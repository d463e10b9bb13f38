// Sequences that become longer than the model's original length (longrope).
#include <gmock/gmock.h>

#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

class LongSequencesTest : public EngineHarness {
 protected:
  static constexpr int32_t kOriginal = 10;
  int32_t original_ = kOriginal;
  void SetUp() override { Make({.chunk_tokens = 8}); }
  void Make(const EngineOptions& options, int32_t num_blocks = 64) {
    model_.original_len = original_;
    Create(options, num_blocks);
  }
  std::unique_ptr<Sequence> LongPrompt(CallId call, int32_t length) {
    auto sequence = Prompt(call, length);
    sequence->is_long = engine_->IsLong(length);
    return sequence;
  }
  const StepRow* StartOne() {
    const StepPlan* plan = Start();
    return plan != nullptr && plan->rows.size() == 1 ? &plan->rows[0] : nullptr;
  }
};

TEST_F(LongSequencesTest, EveryRowOfASequenceSaysWhatTheWholeOfItIs) {
  engine_->Add(LongPrompt(1, kOriginal));
  engine_->Add(LongPrompt(2, kOriginal + 1));
  for (int step = 0; step < 3; ++step) {  // Of 8 tokens.
    const StepPlan* plan = Start();
    for (const StepRow& row : plan->rows) {
      if (row.num_emitted > 0) continue;
      EXPECT_EQ(row.is_long, row.sequence.counter == 2);
    }
    Finish();
  }
  EXPECT_EQ(engine_->num_outgrown(), 1);  // The first, with its first token.
}

TEST_F(LongSequencesTest, OneThatOutgrowsTheOriginalLengthIsComputedAgainFromItsStart) {
  engine_->Add(Decoding(1, 8));  // With its first token, 9.
  const StepRow* row = StartOne();
  ASSERT_NE(row, nullptr);
  EXPECT_FALSE(row->is_long);
  Finish();  // 10 tokens.
  row = StartOne();
  EXPECT_EQ(row->context_len, 9);
  EXPECT_FALSE(row->is_long);
  EXPECT_EQ(engine_->num_outgrown(), 0);
  const auto progress = Finish(61);  // 11 tokens; the last was sampled by the short ones.
  ASSERT_EQ(progress.size(), 1u);
  EXPECT_EQ(progress[0].output->token, 61);
  EXPECT_FALSE(progress[0].ended);
  EXPECT_EQ(engine_->num_outgrown(), 1);
  row = StartOne();  // At once.
  EXPECT_EQ(engine_->num_preempted(), 0u);
  EXPECT_EQ(row->context_len, 0);
  EXPECT_EQ(row->tokens.size(), 8u);
  EXPECT_TRUE(row->is_long);
  EXPECT_FALSE(row->sample);
  EXPECT_TRUE(Finish()[0].output == std::nullopt);
  row = StartOne();
  EXPECT_EQ(row->context_len, 8);
  EXPECT_THAT(row->tokens, ElementsAre(50, 60, 61));
  EXPECT_TRUE(row->is_long && row->sample);
  EXPECT_EQ(Finish(62)[0].output->position, 11);
  row = StartOne();
  EXPECT_EQ(row->context_len, 11);  // And only once.
  EXPECT_EQ(engine_->num_outgrown(), 1);
  EXPECT_EQ(engine_->num_preemptions(), 0);
}

TEST_F(LongSequencesTest, OneThatWasHandedOverAtTheOriginalLengthIsComputedAgain) {
  engine_->Add(Decoding(1, kOriginal));
  EXPECT_EQ(engine_->num_outgrown(), 1);
  const StepRow* row = StartOne();
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->context_len, 0);
  EXPECT_TRUE(row->is_long);
}

TEST_F(LongSequencesTest, OneThatEndsWithTheLastTokenOfTheOriginalLengthIsNot) {
  engine_->Add(Decoding(1, 8, {.max_tokens = 3}));
  Start();
  Finish();
  Start();
  EXPECT_TRUE(Finish()[0].ended);
  EXPECT_EQ(engine_->num_outgrown(), 0);
}

TEST_F(LongSequencesTest, APrefillIsWhatItsPromptIsWhateverItSamples) {
  auto sequence = LongPrompt(1, kOriginal);
  sequence->prefill_only = true;
  engine_->Add(std::move(sequence));
  Start();
  Finish();
  Start();
  const auto progress = Finish();
  ASSERT_TRUE(progress[0].ended);
  EXPECT_FALSE(progress[0].released->is_long);
  EXPECT_EQ(progress[0].released->num_computed, kOriginal);
  EXPECT_EQ(engine_->num_outgrown(), 0);
}

// The tokens are the same, the keys are not.
TEST_F(LongSequencesTest, BlocksOfShortAndLongSequencesAreNotShared) {
  engine_->Add(LongPrompt(1, 8));
  Start();
  Finish();
  const std::vector<int32_t> tokens = New(1, 20)->tokens;
  EXPECT_EQ(pool_->Match(PrefixSalt("t", false), tokens, 8).num_sealed(), 2);
  EXPECT_EQ(pool_->Match(PrefixSalt("t", true), tokens, 8).num_sealed(), 0);
  Start();
  Finish();  // 10 tokens,
  Start();
  Finish();  // 11: long.
  Start();
  Finish();
  EXPECT_EQ(pool_->Match(PrefixSalt("t", true), tokens, 8).num_sealed(), 2);
}

TEST_F(LongSequencesTest, NobodysTokenIsFollowedByOneOfTheOtherKind) {
  Make({.chunk_tokens = 8, .steps_in_flight = 2});
  engine_->Add(Decoding(1, 8));
  engine_->Add(Decoding(2, 3));
  Start();  // The first has 9 tokens.
  const StepPlan* follow_up = Start();
  ASSERT_NE(follow_up, nullptr);  // 10.
  for (const StepRow& row : follow_up->rows) EXPECT_FALSE(row.is_long);
  Finish();
  ASSERT_LT(engine_->follow_up_due(), kNever);
  now_ = engine_->follow_up_due();
  EXPECT_EQ(Start(), nullptr);  // 11.
  Finish();
  EXPECT_EQ(engine_->num_outgrown(), 1);
  const StepPlan* next = Start();
  EXPECT_THAT(Calls(*next), ElementsAre(1, 2));
  EXPECT_THAT(Contexts(*next), ElementsAre(0, 5));
}

TEST_F(LongSequencesTest, TheFollowUpOfALongOneIsLong) {
  Make({.chunk_tokens = 16, .steps_in_flight = 2});
  engine_->Add(LongPrompt(1, kOriginal + 1));
  Start();
  Finish();
  for (const int32_t follows : {-1, 0}) {
    const StepRow* row = StartOne();
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->follows, follows);
    EXPECT_TRUE(row->is_long);
  }
}

TEST_F(LongSequencesTest, OneThatIsSwappedOutComesBackAsWhatItWas) {
  Make({.chunk_tokens = 16, .swap_blocks = 16}, 5);
  engine_->Add(Decoding(1, 7));  // Two blocks each.
  engine_->Add(Decoding(2, 7));
  for (int step = 0; step < 40 && engine_->step_in_flight() == nullptr; ++step) {
    const StepPlan* plan = Start();
    if (plan == nullptr) break;
    for (const StepRow& row : plan->rows) {
      const auto end = row.context_len + static_cast<int32_t>(row.tokens.size());
      // Whole prompts at once here, so the row's end is the sequence's.
      EXPECT_EQ(row.is_long, end > kOriginal) << row.sequence.counter << " " << end;
    }
    for (const SequenceProgress& progress : Finish()) {
      if (progress.output && progress.output->position == 17) engine_->Remove(progress.call);
    }
  }
  EXPECT_GT(engine_->num_swaps(), 0);
  EXPECT_EQ(engine_->num_outgrown(), 2);
  EXPECT_EQ(engine_->CountUnownedHostBlocks(), 0);
}

// ---- In a full pool ----------------------------------------------------------------------------

class FullPoolTest : public LongSequencesTest {
 protected:
  // Two answers of 8 tokens, whose third blocks are not there yet, and a pool without another.
  void Cross(const EngineOptions& options, int32_t num_blocks, CallId crosses) {
    original_ = 8;
    Make(options, num_blocks);
    engine_->Add(Decoding(1, crosses == 1 ? 7 : 5));
    engine_->Add(Decoding(2, crosses == 2 ? 7 : 5));
    Start();
    Finish();
    ASSERT_EQ(engine_->num_outgrown(), 1);
    ASSERT_EQ(engine_->num_preempted(), 0u);
  }
};

TEST_F(FullPoolTest, ItGoesOnInItsOwnBlocks) {
  Make({.chunk_tokens = 16}, 5);
  engine_->Add(Decoding(1, 9));  // With its next token, the eleventh, in three blocks as before.
  engine_->Add(Decoding(2, 5));
  Start();
  Finish();
  EXPECT_EQ(engine_->num_outgrown(), 1);
  EXPECT_EQ(pool_->num_available(), 0);
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(1, 2));
  EXPECT_THAT(Contexts(*plan), ElementsAre(0, 6));
  EXPECT_EQ(engine_->num_preemptions(), 0);
}

TEST_F(FullPoolTest, TheYoungerGivesWayForTheBlockThatItLacks) {
  Cross({.chunk_tokens = 16}, 4, 1);
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(1));
  EXPECT_THAT(Lengths(*plan), ElementsAre(9));
  EXPECT_EQ(engine_->num_preemptions(), 1);
}

TEST_F(FullPoolTest, TheYoungerGivesWayToTheHostAndComesBackBehindIt) {
  Cross({.chunk_tokens = 16, .swap_blocks = 8}, 4, 1);
  const StepPlan* plan = Start();
  EXPECT_TRUE(plan->rows.empty());  // Blocks of the younger leave with this step.
  EXPECT_EQ(plan->swap_out.size(), 2u);
  EXPECT_EQ(engine_->num_swaps(), 1);
  Finish();
  plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(1));
  EXPECT_THAT(Lengths(*plan), ElementsAre(9));
  EXPECT_TRUE(plan->swap_in.empty());
}

TEST_F(FullPoolTest, TheYoungestWaitsItself) {
  Cross({.chunk_tokens = 16}, 4, 2);
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(1));
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(pool_->num_available(), 2);
}

// It would take what the older lacks, and be preempted for it.
TEST_F(FullPoolTest, NobodyYoungerComesBackBeforeTheOlderHasItsBlocks) {
  original_ = 8;
  Make({.chunk_tokens = 16}, 4);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Decoding(2, 5));
  const BlockTable shared = pool_->Match("t", New(1, 7)->tokens, 4);
  ASSERT_EQ(shared.num_sealed(), 1);
  Start();
  Finish();  // The first has one of its blocks again, and lacks two.
  engine_->Remove(2);
  engine_->Add(New(3, 2));  // Without blocks, as one that was preempted.
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(engine_->num_preemptions(), 0);
}

TEST_F(FullPoolTest, ItDoesNotOvertakeAnOlderOneThatWaits) {
  Make({.chunk_tokens = 32}, 5);
  engine_->Add(Decoding(2, 9));
  auto older = New(1, 20);  // Without blocks, as one that was preempted; two are free.
  older->is_long = true;
  engine_->Add(std::move(older));
  EXPECT_THAT(Calls(*Start()), ElementsAre(2));
  Finish();
  EXPECT_EQ(engine_->num_outgrown(), 1);
  EXPECT_EQ(engine_->num_preempted(), 2u);
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
  EXPECT_EQ(engine_->num_preempted(), 1u);
}

TEST_F(FullPoolTest, OneOfWhoseBlocksNotAllComeBackWaitsInItsPlace) {
  original_ = 8;
  Make({.chunk_tokens = 16}, 3);
  engine_->Add(Decoding(1, 7));
  BlockTable others;
  Start();
  pool_->Grow(others, 1);
  BlockTable shared = pool_->Match("t", New(1, 7)->tokens, 4);
  Finish();
  EXPECT_EQ(engine_->num_preempted(), 0u);
  EXPECT_EQ(Start(), nullptr);  // It has one of three.
  others.Release();
  shared.Release();
  EXPECT_THAT(Calls(*Start()), ElementsAre(1));
}

TEST_F(LongSequencesTest, WithoutAnOriginalLengthNothingIsLong) {
  model_.original_len = 0;
  Create({.chunk_tokens = 8}, 64);
  EXPECT_FALSE(engine_->IsLong(1 << 30));
}

}  // namespace
}  // namespace baton
