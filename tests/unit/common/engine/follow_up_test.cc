// Two steps in flight: which steps get a follow-up, and who holds blocks until when.

#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

class FollowUpTest : public EngineHarness {
 protected:
  void SetUp() override { Follow(AtOnce(), 64); }
  void Follow(EngineOptions options, int32_t num_blocks, int32_t window = 0) {
    options.steps_in_flight = 2;
    Create(options, num_blocks, kBlockSize, window);
  }
  static EngineOptions AtOnce(EngineOptions options = {.chunk_tokens = 8}) {
    options.follow_up_lead = std::chrono::hours(1);
    return options;
  }
  StepDone Failed(const char* why) {
    return {.step = engine_->step_in_flight()->step, .status = absl::InternalError(why)};
  }
  int32_t NumDraining() const { return pool_->counts().draining; }
  int32_t NumHeld() const { return pool_->num_blocks() - pool_->num_available(); }
};

TEST_F(FollowUpTest, ItHasTheNextTokenOfEachSequence) {
  SamplingParams penalized{.frequency_penalty = 1};
  engine_->Add(Decoding(1, 6));
  engine_->Add(Decoding(2, 9, penalized));
  ASSERT_THAT(Contexts(*Start()), ElementsAre(6, 9));
  const StepPlan* next = Start();
  ASSERT_NE(next, nullptr);
  EXPECT_THAT(Calls(*next), ElementsAre(1, 2));
  EXPECT_THAT(Contexts(*next), ElementsAre(7, 10));
  for (int32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(next->rows[i].follows, i);
    EXPECT_EQ(next->rows[i].num_emitted, 2);
    EXPECT_TRUE(next->rows[i].sample);
  }
  EXPECT_EQ(next->rows[1].emitted, std::vector<int32_t>{50});  // What is known.
  EXPECT_EQ(Start(), nullptr);                                 // Two at most.
  EXPECT_EQ(Finish(60)[1].output->token, 60);
  const StepPlan* third = Start();
  ASSERT_NE(third, nullptr);
  EXPECT_THAT(Contexts(*third), ElementsAre(8, 11));
  EXPECT_EQ(third->rows[1].emitted, (std::vector<int32_t>{50, 60}));
  EXPECT_EQ(Finish(61)[0].output->token, 61);
  EXPECT_EQ(Finish(62)[0].output->token, 62);
  EXPECT_THAT(Contexts(*Start()), ElementsAre(9, 12));
  EXPECT_EQ(runner_.plans.back()->rows[0].tokens, std::vector<int32_t>{62});
}

TEST_F(FollowUpTest, ItIsDueItsLeadBeforeTheStepsPredictedEnd) {
  constexpr Duration kLead = std::chrono::milliseconds(2);
  Follow({.chunk_tokens = 8, .follow_up_lead = kLead}, 64);
  engine_->Add(Decoding(1, 6));
  Start();
  EXPECT_EQ(engine_->follow_up_due(), now_);  // Nothing is known of a step's time.
  Start();
  EXPECT_EQ(engine_->follow_up_due(), kNever);
  Finish(60, std::chrono::milliseconds(10));
  EXPECT_EQ(engine_->follow_up_due(), now_ + std::chrono::milliseconds(8));
  now_ += std::chrono::milliseconds(7);
  EXPECT_EQ(Start(), nullptr);
  now_ += std::chrono::milliseconds(1);
  EXPECT_NE(Start(), nullptr);
  // A follow-up's own time is from the end of the step before it: 8 ms and 4.
  Finish(61, std::chrono::milliseconds(4));
  EXPECT_EQ(engine_->follow_up_due(), now_ + std::chrono::milliseconds(10));
}

// Not due again before the step has ended: the node would be woken for nothing, over and over.
TEST_F(FollowUpTest, OneThatCannotBeIsNotAskedForAgain) {
  Follow(AtOnce(), 64);
  engine_->Add(Decoding(1, 6));
  Start();
  engine_->Add(Decoding(2, 6));
  EXPECT_EQ(engine_->follow_up_due(), now_);
  EXPECT_EQ(Start(), nullptr);
  EXPECT_EQ(engine_->follow_up_due(), kNever);
}

// Nor is one of a step that has ended.
TEST_F(FollowUpTest, NoneIsDueOnceItsStepHasEnded) {
  engine_->Add(Decoding(1, 6));
  Start();
  EXPECT_EQ(engine_->follow_up_due(), now_);
  Finish();
  EXPECT_EQ(engine_->follow_up_due(), kNever);
}

TEST_F(FollowUpTest, WithOneStepInFlightThereIsNone) {
  Create({.chunk_tokens = 8, .steps_in_flight = 1}, 64);
  engine_->Add(Decoding(1, 6));
  Start();
  EXPECT_EQ(Start(), nullptr);
  EXPECT_EQ(engine_->follow_up_due(), kNever);
}

TEST_F(FollowUpTest, NobodyThatWaitsIsPassedOver) {
  Follow(AtOnce({.chunk_tokens = 8, .max_batch_sequences = 2}), 64);
  engine_->Add(Decoding(1, 6));
  Start();
  engine_->Add(Decoding(2, 6));
  EXPECT_EQ(Start(), nullptr) << "an arrival waits for one step";
  Finish();
  ASSERT_THAT(Calls(*Start()), ElementsAre(1, 2));
  ASSERT_NE(Start(), nullptr);
  engine_->Add(Decoding(3, 6));
  Finish();
  EXPECT_EQ(Start(), nullptr) << "one that came meanwhile waits for two";
  Finish();
  ASSERT_THAT(Calls(*Start()), ElementsAre(3, 1));
  EXPECT_EQ(Start(), nullptr) << "more than a step has rows";
}

// What a step with prompts takes says nothing of when it ends, and who comes would wait for long.
TEST_F(FollowUpTest, AStepWithPromptsIsNotFollowed) {
  Follow(AtOnce(), 64);
  engine_->Add(Decoding(1, 6));
  engine_->Add(Prompt(2, 9));
  ASSERT_THAT(Calls(*Start()), ElementsAre(2, 1));
  EXPECT_EQ(Start(), nullptr);
  Finish();
  ASSERT_THAT(Lengths(*Start()), ElementsAre(2, 1));
  EXPECT_EQ(Start(), nullptr) << "its last chunk, which samples";
  Finish();
  ASSERT_THAT(Lengths(*Start()), ElementsAre(1, 1));
  EXPECT_NE(Start(), nullptr);
}

// In one turn with that of the step before, or just behind it.
TEST_F(FollowUpTest, MailThatComesLateDoesNotTellHowLongAStepTook) {
  Follow(AtOnce({.chunk_tokens = 1}), 64);
  engine_->Add(Decoding(1, 6));
  Start();
  Start();
  Finish(60, std::chrono::milliseconds(20));
  const double rate = engine_->own_prompt_tokens_per_s();
  const auto before = engine_->tokens_per_s();
  Finish(61, std::chrono::microseconds(3));
  EXPECT_EQ(engine_->tokens_per_s(), before);
  EXPECT_EQ(engine_->own_prompt_tokens_per_s(), rate);
  Follow({.chunk_tokens = 8, .follow_up_lead = std::chrono::milliseconds(1)}, 64);
  engine_->Add(Decoding(1, 6));
  Start();
  Start();
  Finish(60, std::chrono::milliseconds(20));
  Finish(61, std::chrono::microseconds(3));
  Start();
  EXPECT_EQ(engine_->follow_up_due(), now_ + std::chrono::milliseconds(9));  // Half, less the lead.
}

// The next turn of a conversation comes with the last token of the one before.
TEST_F(FollowUpTest, OneThatEndsIsFoundByItsPrefixAtOnce) {
  engine_->Add(Decoding(1, 8));
  const std::vector<int32_t> prompt = New(1, 8)->tokens;
  Start();
  Start();
  Finish(kEos);
  ASSERT_EQ(engine_->num_running(), 0u);
  BlockTable found = pool_->Match("t", prompt, 8);
  EXPECT_EQ(found.num_sealed(), 2);
  found.Release();
  Finish();
}

TEST_F(FollowUpTest, WhoCertainlyEndsHasNoRow) {
  engine_->Add(Decoding(1, 6, {.max_tokens = 2}));
  engine_->Add(Decoding(2, 6, {.max_tokens = 3}));
  Start();
  const StepPlan* next = Start();
  ASSERT_NE(next, nullptr);
  EXPECT_THAT(Calls(*next), ElementsAre(2));
  EXPECT_EQ(next->rows[0].follows, 1);
  const auto ended = Finish();
  EXPECT_EQ(ended[0].output->finish, FinishReason::kLength);
  EXPECT_NE(ended[0].released, nullptr);
  EXPECT_EQ(Start(), nullptr);
  EXPECT_NE(Finish()[0].released, nullptr);

  auto prompt = Prompt(3, 1);
  prompt->prefill_only = true;
  engine_->Add(std::move(prompt));
  Start();
  EXPECT_EQ(Start(), nullptr);
  EXPECT_NE(Finish()[0].released, nullptr);
}

TEST_F(FollowUpTest, OneThatEndsHoldsItsBlocksUntilItsWastedRowHasEnded) {
  engine_->Add(Decoding(1, 6));
  engine_->Add(Decoding(2, 6));
  Start();
  Start();
  std::vector<SequenceProgress> first = Finish(kEos);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].output->finish, FinishReason::kStop);
  EXPECT_TRUE(first[0].ended);
  EXPECT_EQ(first[0].released, nullptr);
  EXPECT_GT(NumDraining(), 0);
  EXPECT_EQ(engine_->Remove(1), nullptr);
  EXPECT_NE(engine_->FindTable(1), nullptr);
  EXPECT_EQ(engine_->num_running(), 0u);
  std::vector<SequenceProgress> second = Finish(70);
  ASSERT_EQ(second.size(), 2u);
  for (const SequenceProgress& one : second) {
    EXPECT_FALSE(one.output.has_value()) << "a wasted row says nothing";
    EXPECT_NE(one.released, nullptr);
  }
  second.clear();
  EXPECT_EQ(NumHeld(), 0);
}

TEST_F(FollowUpTest, OneThatIsRemovedHoldsThemToo) {
  for (const bool before_follow_up : {true, false}) {
    engine_->Add(Decoding(1, 6));
    engine_->Add(Decoding(2, 6));
    Start();
    if (before_follow_up) {
      EXPECT_EQ(engine_->Remove(1), nullptr);
    }
    const StepPlan* next = Start();
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(next->rows.size(), before_follow_up ? 1u : 2u);
    if (!before_follow_up) {
      EXPECT_EQ(engine_->Remove(1), nullptr);
    }
    std::vector<SequenceProgress> first = Finish();
    EXPECT_EQ(first.size(), before_follow_up ? 2u : 1u);
    if (before_follow_up) {
      EXPECT_NE(first[0].released, nullptr);
    }
    EXPECT_EQ(engine_->Remove(2), nullptr);
    std::vector<SequenceProgress> second = Finish();
    for (const SequenceProgress& one : second) EXPECT_NE(one.released, nullptr);
    EXPECT_EQ(second.size(), before_follow_up ? 1u : 2u);
    first.clear();
    second.clear();
    EXPECT_EQ(NumHeld(), 0);
  }
}

// It takes what is free: all that it needs or none, and nobody gives way.
TEST_F(FollowUpTest, ItTakesFreeBlocksOnly) {
  Follow(AtOnce(), 5);
  bool asked = false;
  engine_->set_reclaim([&](const AgeKey&, bool) { return asked = true; });
  engine_->Add(Decoding(1, 6));  // Two blocks, which eight tokens fill.
  engine_->Add(Decoding(2, 6));
  Start();
  ASSERT_NE(Start(), nullptr);
  Finish();
  EXPECT_EQ(NumHeld(), 4);
  EXPECT_EQ(Start(), nullptr) << "two blocks are needed and one is free";
  EXPECT_EQ(NumHeld(), 4);
  EXPECT_FALSE(asked);
  EXPECT_EQ(engine_->num_preemptions(), 0);
}

TEST_F(FollowUpTest, WhileOneWaitsForItsBlocksThereIsNone) {
  Follow(AtOnce({.chunk_tokens = 8, .swap_blocks = 8}), 5);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Decoding(2, 7));
  ASSERT_EQ(Start()->rows.size(), 2u);
  EXPECT_EQ(Start(), nullptr);
  Finish();
  const StepPlan* moves = Start();  // The younger gives way, its blocks leave with this step.
  ASSERT_NE(moves, nullptr);
  EXPECT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(engine_->Remove(2)->call, 2u);
  EXPECT_EQ(Start(), nullptr) << "blocks still leave";
}

// If the step failed its blocks would be given up while the follow-up may still write them.
TEST_F(FollowUpTest, WhileBlocksArriveThereIsNone) {
  Follow(AtOnce({.chunk_tokens = 8, .swap_blocks = 8}), 4);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Decoding(2, 6));  // Amid a block: a prefix is not all of it.
  Start();
  Finish();
  Start();
  Finish();
  ASSERT_EQ(engine_->num_preempted(), 1u);
  ASSERT_NE(engine_->Remove(1), nullptr);
  const StepPlan* moves = Start();
  ASSERT_NE(moves, nullptr);
  ASSERT_FALSE(moves->swap_in.empty());
  ASSERT_THAT(Calls(*moves), ElementsAre(2));
  EXPECT_EQ(Start(), nullptr);
  Finish();
  ASSERT_THAT(Calls(*Start()), ElementsAre(2));
  EXPECT_NE(Start(), nullptr);
}

TEST_F(FollowUpTest, OneThatIsToBeComputedAgainIsNotPassedOver) {
  Follow(AtOnce(), 5);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Decoding(2, 7));
  Start();
  Finish();
  ASSERT_THAT(Calls(*Start()), ElementsAre(1));  // For whose token the younger gives way.
  ASSERT_EQ(engine_->num_preempted(), 1u);
  EXPECT_EQ(Start(), nullptr);
}

TEST_F(FollowUpTest, WhatTheWindowPassesMeanwhileIsNotInIt) {
  Follow(AtOnce(), 64, /*window=*/8);
  engine_->Add(Decoding(1, 6));
  for (int32_t i = 0; i < 20; ++i) {
    const StepPlan* first = Start();
    const StepPlan* next = Start();
    ASSERT_TRUE(first != nullptr && next != nullptr);
    for (const StepPlan* plan : {first, next}) {
      const StepRow& row = plan->rows[0];
      for (size_t entry = 0; entry < row.block_table.size(); ++entry) {
        const bool is_seen = static_cast<int32_t>(entry + 1) * kBlockSize > row.context_len - 8 + 1;
        EXPECT_EQ(row.block_table[entry] >= 0, is_seen) << entry << " at " << row.context_len;
      }
    }
    Finish();
    Finish();
  }
  EXPECT_LE(NumHeld(), 3);
}

TEST_F(FollowUpTest, AStepThatFailsEndsItsSequencesWithTheirFollowUp) {
  engine_->Add(Decoding(1, 6));
  Start();
  Start();
  std::vector<SequenceProgress> first = engine_->OnStepDone(Failed("first"), now_);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].ended);
  EXPECT_EQ(first[0].status.message(), "first");
  EXPECT_EQ(first[0].released, nullptr);
  std::vector<SequenceProgress> second = engine_->OnStepDone(Failed("first"), now_);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_TRUE(second[0].status.ok());
  EXPECT_NE(second[0].released, nullptr);
}

// A step that is not the oldest has not ended.
TEST_F(FollowUpTest, StepsEndInTheirOrder) {
  engine_->Add(Decoding(1, 6));
  Start();
  const StepPlan* next = Start();
  EXPECT_TRUE(engine_->OnStepDone({.step = next->step}, now_).empty());
  EXPECT_EQ(Finish().size(), 1u);
  EXPECT_EQ(engine_->step_in_flight(), next);
}

}  // namespace
}  // namespace baton
