#include "common/engine/engine.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

class EngineTest : public EngineHarness {};

TEST_F(EngineTest, StartsNothingWithoutSequences) { EXPECT_EQ(Start(), nullptr); }

TEST_F(EngineTest, HasOneStepInFlight) {
  engine_->Add(Prompt(1, 20));
  ASSERT_NE(Start(), nullptr);
  EXPECT_EQ(Start(), nullptr);
  Finish();
  EXPECT_NE(Start(), nullptr);
}

TEST_F(EngineTest, CutsAPromptIntoChunksAndSamplesBehindItsLastToken) {
  engine_->Add(Prompt(1, 20));
  for (int32_t first : {0, 8, 16}) {
    const StepPlan* plan = Start();
    ASSERT_NE(plan, nullptr);
    const StepRow& row = plan->rows.at(0);
    const int32_t length = std::min(8, 20 - first);
    EXPECT_EQ(row.context_len, first);
    EXPECT_EQ(static_cast<int32_t>(row.tokens.size()), length);
    EXPECT_EQ(row.tokens.front(), 1000 + first);
    EXPECT_EQ(row.tokens.back(), 1000 + first + length - 1);
    EXPECT_EQ(row.block_table.size(), static_cast<size_t>((first + length) / 4));
    EXPECT_EQ(row.sample, first == 16);
    const auto progress = Finish(60);
    ASSERT_EQ(progress.size(), 1u);
    EXPECT_EQ(progress[0].output.has_value(), first == 16);
  }
  EXPECT_THAT(Start()->rows[0].tokens, ElementsAre(60));
}

TEST_F(EngineTest, StepsAreNumberedUpwards) {
  engine_->Add(Prompt(1, 20));
  const uint64_t first = Start()->step;
  Finish();
  EXPECT_EQ(Start()->step, first + 1);
}

TEST_F(EngineTest, PutsPrefillsBeforeDecodesOldestFirst) {
  Create({.chunk_tokens = 32}, 64);
  engine_->Add(Decoding(1, 4));
  engine_->Add(Prompt(4, 5));
  engine_->Add(Decoding(2, 4));
  engine_->Add(Prompt(3, 6));
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(3, 4, 1, 2));
  EXPECT_THAT(Lengths(*plan), ElementsAre(6, 5, 1, 1));
  EXPECT_THAT(engine_->step_calls(), ElementsAre(3, 4, 1, 2));
}

// The worked example of a chunked batch: budget 512, two prompts of 484.
TEST_F(EngineTest, BatchesTwoPromptsOf484UnderABudgetOf512) {
  Create({.chunk_tokens = 512}, 200, 16);
  auto warm = Prompt(9, 448);  // The budget doubles per fast step: 64, 128, 256, then 512.
  warm->prefill_only = true;
  engine_->Add(std::move(warm));
  for (int32_t chunk : {64, 128, 256}) {
    ASSERT_THAT(Lengths(*Start()), ElementsAre(chunk));
    Finish(60, std::chrono::milliseconds(1));
  }
  engine_->Add(Prompt(1, 484));
  engine_->Add(Prompt(2, 484));

  const StepPlan* plan = Start();  // query_start_loc 0, 484, 512.
  EXPECT_THAT(Calls(*plan), ElementsAre(1, 2));
  EXPECT_THAT(Lengths(*plan), ElementsAre(484, 28));
  EXPECT_THAT(Contexts(*plan), ElementsAre(0, 0));
  Finish();
  plan = Start();  // The prefill first: query_start_loc 0, 456, 457; seq_lens 484, 485.
  EXPECT_THAT(Calls(*plan), ElementsAre(2, 1));
  EXPECT_THAT(Lengths(*plan), ElementsAre(456, 1));
  EXPECT_THAT(Contexts(*plan), ElementsAre(28, 484));
  Finish();
  plan = Start();  // Two decodes: seq_lens 486, 485.
  EXPECT_THAT(Calls(*plan), ElementsAre(1, 2));
  EXPECT_THAT(Lengths(*plan), ElementsAre(1, 1));
  EXPECT_THAT(Contexts(*plan), ElementsAre(485, 484));
  Finish();
}

TEST_F(EngineTest, GrowsATableExactlyWhenItsLastBlockIsFull) {
  engine_->Add(Decoding(1, 6));  // 7 tokens in 2 blocks of 4.
  for (size_t blocks : {2, 2, 3, 3, 3, 3, 4}) {
    EXPECT_EQ(Start()->rows[0].block_table.size(), blocks);
    Finish();
  }
}

TEST_F(EngineTest, WhatAStepHasComputedCanBeSharedAfterIt) {
  auto prompt = Prompt(1, 9);
  const std::vector<int32_t> tokens = prompt->tokens;
  engine_->Add(std::move(prompt));
  Start();
  EXPECT_EQ(pool_->Match("t", tokens, 9).size(), 0);
  Finish();
  EXPECT_EQ(pool_->Match("t", tokens, 9).size(), 2);
}

TEST_F(EngineTest, PrefillKeepsAQuarterOfTheStep) {
  for (CallId call = 1; call <= 10; ++call) engine_->Add(Decoding(call, 4));
  engine_->Add(Prompt(11, 20));
  const StepPlan* plan = Start();
  EXPECT_EQ(plan->rows[0].sequence.counter, 11u);
  EXPECT_THAT(Lengths(*plan), ElementsAre(2, 1, 1, 1, 1, 1, 1));
}

TEST_F(EngineTest, DecodesRotateWhenTheyExceedTheBudget) {
  Create({.chunk_tokens = 3}, 64);
  for (CallId call = 1; call <= 5; ++call) engine_->Add(Decoding(call, 4));
  EXPECT_THAT(Calls(*Start()), ElementsAre(1, 2, 3));
  Finish();
  EXPECT_THAT(Calls(*Start()), ElementsAre(4, 5, 1));
  Finish();
  EXPECT_THAT(Calls(*Start()), ElementsAre(2, 3, 4));
}

TEST_F(EngineTest, RowsStayWithinTheBatchLimit) {
  Create({.chunk_tokens = 32, .max_batch_sequences = 3}, 64);
  for (CallId call = 1; call <= 2; ++call) engine_->Add(Decoding(call, 4));
  for (CallId call = 3; call <= 6; ++call) engine_->Add(Prompt(call, 4));
  EXPECT_EQ(Start()->rows.size(), 3u);
}

TEST_F(EngineTest, ASlowStepMakesTheNextOneSmaller) {
  Create({.chunk_tokens = 64}, 64);
  engine_->Add(Prompt(1, 200));
  EXPECT_THAT(Lengths(*Start()), ElementsAre(64));
  Finish(60, kStepTime * 64 / 48);
  EXPECT_THAT(Lengths(*Start()), ElementsAre(48));
}

TEST_F(EngineTest, LetsGoAtTheLastToken) {
  engine_->Add(Decoding(1, 4, {.max_tokens = 2}));
  Start();
  auto progress = Finish(60);
  EXPECT_EQ(progress[0].output->finish, FinishReason::kLength);
  ASSERT_NE(progress[0].released, nullptr);
  EXPECT_THAT(progress[0].released->tokens, testing::Contains(60));
  EXPECT_EQ(engine_->num_running(), 0u);
  EXPECT_EQ(Start(), nullptr);
}

TEST_F(EngineTest, LetsGoAtAnEndToken) {
  engine_->Add(Decoding(1, 4));
  Start();
  auto progress = Finish(kEos);
  EXPECT_EQ(progress[0].output->finish, FinishReason::kStop);
  EXPECT_NE(progress[0].released, nullptr);
}

TEST_F(EngineTest, APrefillLeavesWithItsFirstToken) {
  auto prompt = Prompt(1, 4);
  prompt->prefill_only = true;
  engine_->Add(std::move(prompt));
  Start();
  auto progress = Finish(60);
  EXPECT_EQ(progress[0].output->token, 60);
  EXPECT_EQ(progress[0].output->finish, FinishReason::kNone);
  EXPECT_NE(progress[0].released, nullptr);
}

TEST_F(EngineTest, AScoredPromptSamplesNothingAndLeavesWhenComputed) {
  auto prompt = Prompt(1, 10);
  prompt->score_only = true;
  engine_->Add(std::move(prompt));
  EXPECT_FALSE(Start()->rows[0].sample);
  EXPECT_EQ(Finish()[0].released, nullptr);
  EXPECT_FALSE(Start()->rows[0].sample);
  auto progress = Finish();
  EXPECT_NE(progress[0].released, nullptr);
  EXPECT_FALSE(progress[0].output.has_value());
}

TEST_F(EngineTest, TheSamplerGetsTheHistoryOnlyWhenPenaltiesNeedIt) {
  Create({.chunk_tokens = 32}, 64);
  engine_->Add(Decoding(1, 4));
  engine_->Add(Decoding(2, 4, {.presence_penalty = 0.5f}));
  engine_->Add(Decoding(3, 4, {.frequency_penalty = 0.5f}));
  engine_->Add(Decoding(4, 4, {.repetition_penalty = 1.5f}));
  const StepPlan* plan = Start();
  EXPECT_THAT(plan->rows[0].emitted, ElementsAre());
  for (size_t row : {1, 2, 3}) EXPECT_THAT(plan->rows[row].emitted, ElementsAre(50));
  EXPECT_EQ(plan->rows[1].num_emitted, 1);
}

TEST_F(EngineTest, RemoveGivesBackAtOnceWhatNoStepComputes) {
  engine_->Add(Decoding(1, 4));
  auto sequence = engine_->Remove(1);
  ASSERT_NE(sequence, nullptr);
  EXPECT_EQ(sequence->call, 1u);
  EXPECT_EQ(engine_->Remove(1), nullptr);
  EXPECT_EQ(engine_->Remove(7), nullptr);
  EXPECT_EQ(Start(), nullptr);
}

TEST_F(EngineTest, RemoveDuringAStepHoldsTheBlocksUntilItHasEnded) {
  engine_->Add(Decoding(1, 6));
  engine_->Add(Decoding(2, 6));
  Start();
  const int32_t available = pool_->num_available();
  EXPECT_EQ(engine_->Remove(1), nullptr);
  EXPECT_EQ(pool_->num_available(), available);
  EXPECT_EQ(pool_->counts().draining, 1) << "the full block stays findable";
  EXPECT_EQ(engine_->num_running(), 1u);
  auto progress = Finish();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].call, 1u);
  EXPECT_NE(progress[0].released, nullptr);
  EXPECT_FALSE(progress[0].output.has_value());
  EXPECT_TRUE(progress[1].output.has_value());
  EXPECT_THAT(Calls(*Start()), ElementsAre(2));
}

TEST_F(EngineTest, AFailedStepLetsGoOfAllItsSequencesAndOnlyOfThem) {
  Create({.chunk_tokens = 2}, 64);
  for (CallId call = 1; call <= 3; ++call) engine_->Add(Decoding(call, 4));
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(1, 2));
  engine_->Remove(2);
  auto progress =
      engine_->OnStepDone({.step = plan->step, .status = absl::InternalError("broken")}, now_);
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].status, absl::InternalError("broken"));
  EXPECT_NE(progress[0].released, nullptr);
  EXPECT_FALSE(progress[0].output.has_value());
  EXPECT_TRUE(progress[1].status.ok());  // Nobody waits for its answer any more.
  EXPECT_NE(progress[1].released, nullptr);
  EXPECT_THAT(Calls(*Start()), ElementsAre(3));
}

TEST_F(EngineTest, TheEndOfAnotherStepIsIgnored) {
  engine_->Add(Decoding(1, 4));
  EXPECT_TRUE(engine_->OnStepDone({.step = 1}, now_).empty());
  const StepPlan* plan = Start();
  EXPECT_TRUE(engine_->OnStepDone({.step = plan->step + 1}, now_).empty());
  EXPECT_NE(engine_->step_in_flight(), nullptr);
}

TEST_F(EngineTest, ATableWithMoreBlocksThanItsTokensNeedStaysAsItIs) {
  auto sequence = Decoding(1, 4);
  ASSERT_TRUE(pool_->Grow(sequence->blocks, 3));
  engine_->Add(std::move(sequence));
  for (size_t blocks : {2, 2}) {
    EXPECT_EQ(Start()->rows[0].block_table.size(), blocks);
    EXPECT_EQ(engine_->FindTable(1)->size(), 4);
    Finish();
  }
}

TEST_F(EngineTest, FindsTheTableOfWhatRunsAndOfWhatWasRemovedDuringItsStep) {
  engine_->Add(Decoding(1, 6));
  EXPECT_EQ(engine_->FindTable(7), nullptr);
  ASSERT_NE(engine_->FindTable(1), nullptr);
  Start();
  engine_->Remove(1);
  ASSERT_NE(engine_->FindTable(1), nullptr);
  EXPECT_EQ(engine_->FindTable(1)->size(), 2);
  Finish();
  EXPECT_EQ(engine_->FindTable(1), nullptr);
  EXPECT_TRUE(engine_->LeavingTables().empty());
}

TEST_F(EngineTest, APrefillGoesOnBesideDecodesThatFillTheStep) {
  Create({.chunk_tokens = 1}, 64);
  engine_->Add(Decoding(1, 4));
  engine_->Add(Prompt(2, 4));
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(2, 1));
}

TEST_F(EngineTest, APrefillGoesOnBesideDecodesThatFillTheBatch) {
  for (const int32_t rows : {1, 3}) {
    Create({.chunk_tokens = 32, .max_batch_sequences = rows}, 64);
    for (CallId call = 1; call <= 4; ++call) engine_->Add(Decoding(call, 4));
    engine_->Add(Prompt(5, 4));
    const StepPlan* plan = Start();
    ASSERT_EQ(plan->rows.size(), static_cast<size_t>(rows));
    EXPECT_EQ(plan->rows[0].sequence.counter, 5u);
  }
}

TEST_F(EngineTest, AsManyDecodesAsFitComeOldestFirst) {
  Create({.chunk_tokens = 3}, 64);
  for (CallId call : {1, 3}) engine_->Add(Decoding(call, 4));
  Start();
  Finish();
  engine_->Add(Decoding(4, 4));
  EXPECT_THAT(Calls(*Start()), ElementsAre(1, 3, 4));
}

TEST_F(EngineTest, AFailedRowLetsGoOfItsSequenceAlone) {
  engine_->Add(Decoding(1, 4));
  engine_->Add(Decoding(2, 4));
  const StepPlan* plan = Start();
  StepDone done{.step = plan->step, .rows = std::vector<RowResult>(2)};
  done.rows[0].status = absl::InternalError("no numbers");
  done.rows[1] = {.sampled = true, .output = {.position = 5, .token = 60}};
  auto progress = engine_->OnStepDone(std::move(done), now_);
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].status, absl::InternalError("no numbers"));
  ASSERT_NE(progress[0].released, nullptr);
  EXPECT_EQ(progress[0].released->num_computed, 4);  // Nobody will find what it wrote.
  EXPECT_FALSE(progress[0].output.has_value());
  EXPECT_EQ(progress[1].output->token, 60);
  EXPECT_THAT(Calls(*Start()), ElementsAre(2));
}

TEST_F(EngineTest, WhatItsCallersMayNotDoEndsTheProcess) {
  engine_->Add(Decoding(1, 4));
  EXPECT_DEATH(engine_->Add(Decoding(1, 4)), "keys_.emplace");
  auto computed = Prompt(2, 4);
  computed->num_computed = 4;
  EXPECT_DEATH(engine_->Add(std::move(computed)), "num_remaining");
  auto without_blocks = New(3, 9);
  without_blocks->num_computed = 4;
  EXPECT_DEATH(engine_->Add(std::move(without_blocks)), "block_size");
  auto short_of_blocks = Prompt(3, 4);
  short_of_blocks->tokens.resize(9);
  engine_->Add(std::move(short_of_blocks));
  EXPECT_DEATH(Start(), "BlocksFor");
}

TEST_F(EngineTest, ARunnerThatAnswersForOtherRowsEndsTheProcess) {
  engine_->Add(Decoding(1, 4));
  engine_->Add(Prompt(2, 20));
  const StepPlan* plan = Start();
  ASSERT_EQ(plan->rows.size(), 2u);
  const auto answer = [&](std::vector<RowResult> rows) {
    engine_->OnStepDone({.step = plan->step, .rows = std::move(rows)}, now_);
  };
  EXPECT_DEATH(answer(std::vector<RowResult>(1)), "rows.size");
  EXPECT_DEATH(answer({{.sampled = true}, {.sampled = true}}), "row.sample");
}

TEST_F(EngineTest, AFailedStepSaysNothingAboutTheSizeOfTheNext) {
  Create({.chunk_tokens = 64}, 64);
  engine_->Add(Prompt(1, 64));
  engine_->Add(Prompt(2, 64));
  EXPECT_THAT(Lengths(*Start()), ElementsAre(64));
  engine_->OnStepDone(
      {.step = engine_->step_in_flight()->step, .status = absl::InternalError("broken")},
      now_ += 2 * kStepTime);
  EXPECT_THAT(Lengths(*Start()), ElementsAre(64));
}

TEST_F(EngineTest, AStepIsMeasuredFromItsOwnStart) {
  Create({.chunk_tokens = 64}, 64);
  now_ += 100 * kStepTime;
  engine_->Add(Prompt(1, 200));
  EXPECT_THAT(Lengths(*Start()), ElementsAre(64));
  Finish();
  EXPECT_THAT(Lengths(*Start()), ElementsAre(64));
}

TEST_F(EngineTest, ARowCarriesItsSamplingAndItsScoresComeBack) {
  auto prompt = Prompt(1, 4);
  const auto sampling = prompt->sampling;
  engine_->Add(std::move(prompt));
  const StepPlan* plan = Start();
  EXPECT_EQ(plan->rows[0].sampling, sampling);
  StepDone done{.step = plan->step};
  done.rows.push_back({.sequence = plan->rows[0].sequence,
                       .sampled = true,
                       .output = {.position = 4, .token = 60},
                       .prompt_logprobs = {{.position = 1, .token = 1001}}});
  const auto progress = engine_->OnStepDone(std::move(done), now_);
  ASSERT_EQ(progress.size(), 1u);
  ASSERT_EQ(progress[0].prompt_logprobs.size(), 1u);
  EXPECT_EQ(progress[0].prompt_logprobs[0].token, 1001);
}

// By them workers are added: answers under way are none of those.
TEST_F(EngineTest, CountsTheTokensThatWait) {
  engine_->Add(Decoding(1, 4));
  EXPECT_EQ(engine_->queued_tokens(), 0);
  engine_->Add(Prompt(2, 20));
  EXPECT_EQ(engine_->queued_tokens(), 20);
  Start();
  Finish();
  EXPECT_EQ(engine_->queued_tokens(), 13);
}

}  // namespace
}  // namespace baton
