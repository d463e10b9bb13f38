// Log probabilities of a prompt that a decode worker computes itself.
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using Code = absl::StatusCode;

class OwnScoresTest : public DecodeNodeHarness {
 protected:
  explicit OwnScoresTest(int32_t chunk_tokens = 8)
      : DecodeNodeHarness(SmallModel(), {.chunk_tokens = chunk_tokens}) {}
  DecodeRequest Scored(CallId call, int32_t length, int32_t max_tokens = 8) {
    DecodeRequest request = Request(call, length, max_tokens);
    request.prefill = 0;
    request.compute_prompt = true;
    request.sampling.num_prompt_logprobs = 0;
    return request;
  }
  std::vector<int32_t> Told(CallId call) {
    std::vector<int32_t> positions;
    for (const ScoresEvent& event : outbox_.Events<ScoresEvent>(call)) {
      for (const PromptLogprob& one : event.logprobs) positions.push_back(one.position);
    }
    return positions;
  }
  static std::vector<int32_t> To(int32_t last) {
    std::vector<int32_t> positions(last);
    std::iota(positions.begin(), positions.end(), 1);
    return positions;
  }
  // Whatever steps it takes.
  void RunToItsEnd(CallId call) {
    for (int i = 0; i < 200 && !outbox_.Closed(call).has_value(); ++i) FinishStep();
    ASSERT_EQ(outbox_.Closed(call), Code::kOk);
  }
};

class OwnScoresInSmallStepsTest : public OwnScoresTest {
 protected:
  OwnScoresInSmallStepsTest() : OwnScoresTest(/*chunk_tokens=*/2) {}
};

TEST_F(OwnScoresTest, ComeBeforeTheFirstToken) {
  Open(1, Scored(1, 10));
  FinishStep();
  EXPECT_EQ(Told(1), To(8));
  EXPECT_THAT(Tokens(1), IsEmpty());
  FinishStep(56);
  EXPECT_EQ(Told(1), To(9));
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(10, 56)));
}

TEST_F(OwnScoresTest, WhatIsCachedIsComputedForThem) {
  DecodeRequest first = Scored(1, 10, 1);
  first.sampling.num_prompt_logprobs = -1;
  Open(1, first);
  RunToItsEnd(1);
  DecodeRequest again = Scored(1, 10, 1);
  again.attempt = 2;
  Open(2, again);
  EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 0);
  EXPECT_EQ(outbox_.Events<TokensEvent>(2)[0].cached_tokens, 0);
  RunToItsEnd(2);
  EXPECT_EQ(Told(2), To(9));
}

TEST_F(OwnScoresTest, AloneTheCallEndsWithThePromptAndWithoutAToken) {
  for (const int32_t length : {1, 2, 9, 10, 16}) {
    const CallId call = 10 + length;
    DecodeRequest request = Scored(call, length, 1);
    request.score_only = true;
    Open(call, request);
    RunToItsEnd(call);
    EXPECT_EQ(Told(call), To(length - 1));
    EXPECT_THAT(Tokens(call), IsEmpty());
    EXPECT_TRUE(node_.idle());
  }
}

TEST_F(OwnScoresTest, AreThePrefillWorkersWhereItBringsThePrompt) {
  DecodeRequest request = Request(1, 10);
  request.sampling.num_prompt_logprobs = 0;
  Open(1, request);
  Begin(1);
  EndTransfer(1, absl::OkStatus(), {.position = 10, .token = 50});
  EXPECT_EQ(runner_.plans.back()->rows[0].sampling->params.num_prompt_logprobs, -1);
}

TEST_F(OwnScoresTest, OfAnAnswerThatIsComputedAgainAreNotToldAgain) {
  Run(1, 16, 13);
  Open(2, Scored(2, 8, 20));
  RunToItsEnd(2);
  EXPECT_GT(node_.num_preemptions(), 0);
  EXPECT_EQ(Told(2), To(7));
  EXPECT_EQ(Tokens(2).size(), 20u);
  for (const auto& plan : runner_.plans) {  // Nor computed.
    for (const StepRow& row : plan->rows) {
      if (row.sequence.counter == 2 && row.num_emitted > 0) {
        EXPECT_EQ(row.scores_from, 8);
      }
    }
  }
}

TEST_F(OwnScoresInSmallStepsTest, OfAPromptThatIsPreemptedAreToldOnceEach) {
  Run(1, 16, 20);
  Open(2, Scored(2, 16, 2));
  RunToItsEnd(2);
  EXPECT_GT(node_.num_preemptions(), 0);
  EXPECT_EQ(Told(2), To(15));
}

TEST_F(OwnScoresTest, AnAnswerWithSuchAPromptReturnsToItsBlocks) {
  Open(1, Scored(1, 8, 20));
  FinishStep(51);
  FinishStep(52);
  Handle(CallBroken{.call = 1, .session_ended = true});
  DecodeRequest back = Scored(1, 8, 20);
  back.compute_prompt = false;
  back.sampling.num_prompt_logprobs = -1;
  back.attempt = 2;
  back.tokens.insert(back.tokens.end(), {51, 52});
  Open(2, back);
  EXPECT_EQ(node_.counters().resumed, 1);
  EXPECT_THAT(Told(2), IsEmpty());
}

}  // namespace
}  // namespace baton
