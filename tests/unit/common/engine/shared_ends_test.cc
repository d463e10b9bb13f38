// A further choice of a prompt takes the block behind the full ones as a copy, from a choice that
// goes on there.
#include <gmock/gmock.h>

#include "tests/unit/common/engine/engine_harness.h"
#include "tests/unit/common/engine/worker_fakes.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

class SharedEndsTest : public EngineHarness {
 protected:
  // A choice of that call's prompt, which holds what is cached of it.
  std::unique_ptr<Sequence> Further(
      CallId call, CallId of, int32_t length, void (*differs)(Sequence&) = [](Sequence&) {}) {
    auto sequence = New(call, length);
    sequence->tokens = New(of, length)->tokens;
    differs(*sequence);
    const int32_t num_tokens = sequence->num_tokens();
    sequence->is_long = engine_->IsLong(num_tokens);
    sequence->blocks = pool_->Match(sequence->salt(), sequence->tokens, num_tokens - 1);
    sequence->num_computed = sequence->blocks.num_sealed() * kBlockSize;
    EXPECT_TRUE(
        pool_->Grow(sequence->blocks, pool_->BlocksFor(num_tokens) - sequence->blocks.size()));
    return sequence;
  }
  BlockId BlockOf(CallId call, int32_t entry, int32_t group = 0) const {
    return engine_->FindTable(call)->blocks(group)[entry];
  }
  testing::Matcher<const BlockMove&> Copy(BlockId from, BlockId to) {
    return AllOf(Field(&BlockMove::source, from), Field(&BlockMove::destination, to));
  }
};

TEST_F(SharedEndsTest, ItComputesItsLastTokenAlone) {
  engine_->Add(Decoding(1, 11));
  engine_->Add(Further(2, 1, 11));
  const StepPlan* plan = Start();
  ASSERT_THAT(Calls(*plan), ElementsAre(2, 1));
  EXPECT_THAT(Contexts(*plan), ElementsAre(10, 11));
  EXPECT_THAT(Lengths(*plan), ElementsAre(1, 1));
  EXPECT_THAT(plan->rows[0].tokens, ElementsAre(1010));
  EXPECT_TRUE(plan->rows[0].sample);
  EXPECT_EQ(BlockOf(2, 1), BlockOf(1, 1)) << "it is full, and shared";
  EXPECT_THAT(plan->copies, ElementsAre(Copy(BlockOf(1, 2), BlockOf(2, 2))));
  EXPECT_EQ(engine_->num_copied_tokens(), 2);
  Finish();
  plan = Start();
  EXPECT_THAT(plan->copies, IsEmpty());
  EXPECT_THAT(Contexts(*plan), ElementsAre(12, 11));
  EXPECT_NE(BlockOf(2, 2), BlockOf(1, 2)) << "each writes its own";
}

TEST_F(SharedEndsTest, AtABlocksEndItCopiesThatBlockForItsLastTokensSake) {
  engine_->Add(Decoding(1, 8));
  engine_->Add(Further(2, 1, 8));
  const StepPlan* plan = Start();
  EXPECT_THAT(plan->rows[0].tokens, ElementsAre(1007));
  EXPECT_THAT(plan->copies, ElementsAre(Copy(BlockOf(1, 1), BlockOf(2, 1))));
}

TEST_F(SharedEndsTest, AllThatCameCopyInOneStepBehindItsPrompts) {
  Create({.chunk_tokens = 16}, 64);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Further(2, 1, 7));
  engine_->Add(Prompt(3, 5));
  engine_->Add(Further(4, 1, 7));
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(3, 2, 4, 1)) << "rows of several tokens come first";
  EXPECT_THAT(Lengths(*plan), ElementsAre(5, 1, 1, 1));
  EXPECT_THAT(plan->copies,
              ElementsAre(Copy(BlockOf(1, 1), BlockOf(2, 1)), Copy(BlockOf(1, 1), BlockOf(4, 1))));
}

TEST_F(SharedEndsTest, TheyTakeTheRowsOfPromptsByAge) {
  Create({.chunk_tokens = 16, .max_batch_sequences = 2}, 64);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Prompt(2, 5));
  engine_->Add(Further(3, 1, 7));
  EXPECT_THAT(Calls(*Start()), ElementsAre(2, 1)) << "prompts have one row beside answers";
  Finish();
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(3, 2)) << "answers take turns";
  EXPECT_THAT(plan->copies, IsEmpty()) << "of its prompt's choices none is in this step";
  EXPECT_THAT(Lengths(*plan), ElementsAre(3, 1));
}

// Of a choice from the one beside which it runs.
struct Difference {
  const char* name;
  void (*make)(Sequence& sequence);
  size_t num_copies = 0;
  int32_t length = 7;
};
constexpr Difference kDifferences[] = {
    {"none", [](Sequence&) {}, 1},
    {"its last token, which it computes", [](Sequence& s) { s.tokens[6] = 7; }, 1},
    {"the token before", [](Sequence& s) { s.tokens[5] = 7; }},
    {"a token of a full block", [](Sequence& s) { s.tokens[2] = 7; }},
    {"tenant", [](Sequence& s) { s.tenant = "other"; }, 0, 3},
    {"none, in the first block", [](Sequence&) {}, 1, 3},
    {"a prompt that is handed over", [](Sequence& s) { s.prefill_only = true; }},
    {"scores", [](Sequence& s) { s.score_only = true; }},
    {"a prompt that is computed here", [](Sequence& s) { s.own_prompt = true; }},
    {"tokens that the other has not",
     [](Sequence& s) { s.tokens.insert(s.tokens.end(), {50, 60}); }},
};

TEST_F(SharedEndsTest, NothingIsCopiedOfAnotherPromptOrForAnotherPurpose) {
  for (const Difference& difference : kDifferences) {
    Create({.chunk_tokens = 16}, 64);
    engine_->Add(Decoding(1, difference.length));
    engine_->Add(Further(2, 1, difference.length, difference.make));
    EXPECT_THAT(Start()->copies, SizeIs(difference.num_copies)) << difference.name;
  }
}

TEST_F(SharedEndsTest, AShortChoiceCopiesNothingOfALongOne) {
  model_.original_len = 7;
  Create({.chunk_tokens = 16}, 64);
  engine_->Add(Decoding(1, 7));
  Start();  // Computed again: with its first token it is long.
  Finish();
  engine_->Add(Further(2, 1, 7));
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(2, 1));
  EXPECT_THAT(plan->copies, IsEmpty());
  EXPECT_THAT(Lengths(*plan), ElementsAre(3, 1));
}

// Beyond that a handoff may have begun inside the block.
TEST_F(SharedEndsTest, OfEachGroupItIsCopiedUntilAWindowHasPassedSomething) {
  Create({.chunk_tokens = 16}, 64, GroupedModel(/*window=*/10, /*spare=*/0).layout);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Further(2, 1, 7));
  EXPECT_THAT(Start()->copies, ElementsAre(Copy(BlockOf(1, 1, 0), BlockOf(2, 1, 0)),
                                           Copy(BlockOf(1, 1, 1), BlockOf(2, 1, 1))));
  for (int i = 0; i < 3; ++i) {
    Finish();
    Start();
  }
  engine_->Add(Further(3, 1, 7));
  Finish();
  const StepPlan* plan = Start();
  EXPECT_THAT(Calls(*plan), ElementsAre(3, 1, 2));
  EXPECT_THAT(plan->copies, IsEmpty());
  EXPECT_EQ(plan->rows[0].tokens.size(), 3u);
}

TEST_F(SharedEndsTest, WhatIsCopiedStaysUntilTheStepHasEnded) {
  engine_->Add(Decoding(1, 7));
  engine_->Add(Further(2, 1, 7));
  const BlockMove copy = Start()->copies.at(0);
  EXPECT_EQ(engine_->Remove(1), nullptr);
  EXPECT_EQ(engine_->Remove(2), nullptr);
  EXPECT_EQ(pool_->state(copy.source), BlockState::kDraining);
  EXPECT_EQ(pool_->state(copy.destination), BlockState::kDraining);
  EXPECT_THAT(Finish(), SizeIs(2));
  EXPECT_EQ(pool_->state(copy.source), BlockState::kFree);
  EXPECT_EQ(pool_->state(copy.destination), BlockState::kFree);
}

// Nobody goes on from a copy before it is made.
TEST_F(SharedEndsTest, ItDecodesFromTheEndOfItsFirstStepOn) {
  engine_->Add(Decoding(1, 7));
  engine_->Add(Further(2, 1, 7));
  Start();
  EXPECT_TRUE(engine_->Decodes(1));
  EXPECT_FALSE(engine_->Decodes(2));
  Finish();
  EXPECT_TRUE(engine_->Decodes(2));
}

TEST_F(SharedEndsTest, AStepThatCopiesAndFailsEndsAllOfItsRows) {
  engine_->Add(Decoding(1, 7));
  engine_->Add(Further(2, 1, 7));
  const uint64_t step = Start()->step;
  const auto ended = engine_->OnStepDone(
      {.step = step, .status = absl::InternalError("out of luck"), .rows = {}}, now_);
  ASSERT_THAT(ended, SizeIs(2));
  for (const SequenceProgress& progress : ended) EXPECT_TRUE(progress.released != nullptr);
}

TEST_F(SharedEndsTest, AStepThatCopiesHasNoFollowUp) {
  Create({.chunk_tokens = 8, .steps_in_flight = 2}, 64);
  engine_->Add(Decoding(1, 7));
  engine_->Add(Further(2, 1, 7));
  Start();
  EXPECT_EQ(engine_->follow_up_due(), kNever);
  EXPECT_EQ(Start(), nullptr);
  Finish();
  Start();
  EXPECT_LT(engine_->follow_up_due(), kNever);
}

}  // namespace
}  // namespace baton
