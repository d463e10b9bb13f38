// A model whose sequences of more than 10 tokens have other keys (longrope).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using Code = absl::StatusCode;

ModelInfo LongropeModel() {
  ModelInfo model = SmallModel();
  model.original_len = 10;
  return model;
}

class LongSequencesNodeTest : public DecodeNodeHarness {
 protected:
  LongSequencesNodeTest() : DecodeNodeHarness(LongropeModel()) {}
  // An answer of call 1's prompt of 9 tokens, of which these are known, comes back.
  void Return(CallId call, const std::vector<int32_t>& emitted) {
    DecodeRequest request = Request(1, 9, 20);
    request.sequence = {1, call};
    request.attempt = 2;
    request.prefill = 0;
    request.tokens.insert(request.tokens.end(), emitted.begin(), emitted.end());
    Open(call, std::move(request));
  }
};

TEST_F(LongSequencesNodeTest, AHandoffOfTheOriginalLengthIsVerifiedAndThenComputedAgain) {
  Run(1, 10);
  ASSERT_EQ(runner_.plans.size(), 1u);
  const StepRow& row = runner_.plans[0]->rows[0];
  EXPECT_EQ(row.context_len, 0);
  EXPECT_TRUE(row.is_long);
  EXPECT_EQ(node_.counters().handoffs, 1);
  // Its full blocks are found by another choice of the prompt, which is short as yet.
  const std::vector<int32_t> prompt = Request(1, 10).tokens;
  EXPECT_EQ(pool_.Match(PrefixSalt("t", false), prompt, 9).num_sealed(), 2);
  EXPECT_EQ(pool_.Match(PrefixSalt("t", true), prompt, 9).num_sealed(), 0);
}

TEST_F(LongSequencesNodeTest, AnAnswerThatReturnsFindsTheBlocksOfItsLength) {
  Run(1, 9);
  Return(2, {50});  // 10 tokens: as what is here.
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  Return(3, {50, 55});  // 11: nobody has computed its long form.
  EXPECT_EQ(outbox_.Closed(3), Code::kFailedPrecondition);
}

TEST_F(LongSequencesNodeTest, ALongPromptDoesNotBeginWithAShortOnesBlocks) {
  Run(1, 8);
  DecodeRequest request = Request(1, 8);
  request.sequence = {1, 2};
  request.tokens.insert(request.tokens.end(), {7, 8, 9});
  request.prompt_length = 11;
  Open(2, request);
  EXPECT_EQ(outbox_.Events<ReservedEvent>(2).at(0).cached_tokens, 0);
  request.tokens.pop_back();
  request.prompt_length = 10;
  request.sequence = {1, 3};
  Open(3, request);
  EXPECT_EQ(outbox_.Events<ReservedEvent>(3).at(0).cached_tokens, 8);
}

// ---- Its session ends --------------------------------------------------------------------------

class ParkedLongSequencesTest : public LongSequencesNodeTest {
 protected:
  const StepRow& Row() const { return runner_.plans.back()->rows.front(); }
  void EndSession(CallId call) { Handle(CallBroken{.call = call, .session_ended = true}); }
  // 12 tokens, of which the eleventh made it long; the step in flight computes the last.
  void Cross() {
    Run(1, 9);
    FinishStep();    // 55.
    FinishStep();    // 8 tokens once more,
    FinishStep(56);  // and the other 3.
    ASSERT_EQ(Row().context_len, 11);
    ASSERT_TRUE(Row().is_long);
  }
  void Resume(CallId call, const std::vector<int32_t>& known) {
    DecodeRequest request = Request(1, 9, 20);
    request.attempt = 2;
    request.prefill = 0;
    request.tokens.insert(request.tokens.end(), known.begin(), known.end());
    Handle(DecodeOpened{.call = call, .request = std::move(request)});
  }
};

TEST_F(ParkedLongSequencesTest, OneThatHadCrossedGoesOnWithItsLongBlocks) {
  // The router has heard all, or of a short answer: what was computed decides.
  for (const std::vector<int32_t>& known : std::vector<std::vector<int32_t>>{{50, 55, 56}, {50}}) {
    Cross();
    const std::vector<BlockId> blocks = Row().block_table;
    const int64_t resumed = node_.counters().resumed;
    EndSession(1);
    FinishStep();
    Resume(2, known);
    ASSERT_EQ(outbox_.Closed(2), std::nullopt);
    EXPECT_EQ(node_.counters().resumed, resumed + 1);
    EXPECT_EQ(Row().context_len, 11);
    EXPECT_TRUE(Row().is_long);
    EXPECT_EQ(Row().block_table, blocks);
    FinishStep(57);
    EXPECT_EQ(Tokens(2).back(), std::pair(12, 57));
    Handle(CallBroken{2});
    FinishStep();
    ASSERT_TRUE(node_.idle());
    outbox_.calls.clear();
    BlockTable all;  // What is cached of it is of no use to the next.
    ASSERT_TRUE(pool_.Grow(all, pool_.num_blocks()));
  }
}

TEST_F(ParkedLongSequencesTest, OneWhoseLongFormIsBeingComputedIsNotKept) {
  Run(1, 9);
  FinishStep();
  ASSERT_EQ(Row().context_len, 0);
  EndSession(1);
  EXPECT_EQ(node_.counters().parked, 0);
  FinishStep();
  Resume(2, {50, 55});
  EXPECT_EQ(outbox_.Closed(2), Code::kFailedPrecondition) << "nobody has its long form";
}

TEST_F(ParkedLongSequencesTest, OneThatParksAmidTheStepThatMakesItLongCrossesWhenItIsBack) {
  Run(1, 9);
  ASSERT_EQ(Row().context_len, 9);
  EndSession(1);
  EXPECT_EQ(node_.counters().parked, 1);
  FinishStep(55);  // The token is nobody's.
  Resume(2, {50});
  EXPECT_EQ(Row().context_len, 9);
  EXPECT_FALSE(Row().is_long);
  FinishStep(55);
  EXPECT_EQ(Row().context_len, 0);
  EXPECT_TRUE(Row().is_long);
  FinishStep();
  FinishStep(56);
  EXPECT_EQ(Tokens(2).back(), std::pair(11, 56));
}

}  // namespace
}  // namespace baton
