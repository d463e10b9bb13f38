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

}  // namespace
}  // namespace baton
