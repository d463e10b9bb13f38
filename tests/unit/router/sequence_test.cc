#include "router/sequence.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using testing::ElementsAre;
using State = SequenceState::State;

class SequenceTest : public testing::Test {
 protected:
  // A prompt of three tokens, then an answer of at most `max_tokens`.
  ValidRequest Body(int32_t max_tokens) {
    ValidRequest body;
    body.prompts = {{9}, {1, 2, 3}};
    body.sampling.max_tokens = max_tokens;
    return body;
  }
  SequenceState Of(const ValidRequest& body) {
    SequenceState sequence;
    sequence.body = &body;
    sequence.prompt = 1;
    sequence.group = 5;
    return sequence;
  }
};

TEST_F(SequenceTest, WhatTheClientHasSeenIsPrefilledAgainAndBindsTheRestToItsGroup) {
  const ValidRequest body = Body(4);
  SequenceState sequence = Of(body);
  EXPECT_EQ(sequence.Need().prompt_tokens, 3);
  EXPECT_EQ(sequence.Need().total_tokens, 7);
  EXPECT_EQ(sequence.Need().group, 0u) << "any";
  sequence.emitted = {50, 51};
  EXPECT_EQ(sequence.NextPosition(), 5);
  EXPECT_EQ(sequence.Need().prompt_tokens, 5);
  EXPECT_EQ(sequence.Need().group, 5u);
  sequence.base = 4;
  EXPECT_THAT(sequence.BaseTokens(), ElementsAre(1, 2, 3, 50)) << "of the attempt that runs";
  sequence.base = 3;
  EXPECT_THAT(sequence.BaseTokens(), ElementsAre(1, 2, 3));
}

TEST_F(SequenceTest, WhoHoldsASideGoesOnWithThatAttemptsTokens) {
  const ValidRequest body = Body(4);
  for (const bool prefill : {false, true}) {
    SequenceState sequence = Of(body);
    sequence.base = 3;
    sequence.emitted = {50, 51};
    (prefill ? sequence.prefill : sequence.decode).call = 1;
    EXPECT_TRUE(sequence.Holds());
    EXPECT_EQ(sequence.Need().prompt_tokens, 3);
    EXPECT_EQ(sequence.Need().group, 5u);
  }
}

TEST_F(SequenceTest, ADecodeWorkerIsNeededForASecondToken) {
  for (const int32_t max_tokens : {1, 2}) {
    const ValidRequest body = Body(max_tokens);
    EXPECT_EQ(Of(body).Need().needs_decode, max_tokens == 2);
  }
  ValidRequest body = Body(4);
  SequenceState stopped = Of(body);
  stopped.finished = true;
  EXPECT_FALSE(stopped.Need().needs_decode) << "only its score is wanted";
  body.score_only = true;
  EXPECT_FALSE(Of(body).Need().needs_decode);
  EXPECT_EQ(Of(body).Need().total_tokens, 3);
}

TEST_F(SequenceTest, ChoicesOfAPromptSampleApartAndOneAsksForTheScore) {
  ValidRequest body = Body(4);
  body.num_choices = 3;
  body.sampling.num_prompt_logprobs = 2;
  SequenceState sequence = Of(body);
  sequence.choice = 5;
  EXPECT_EQ(sequence.Sampling().choice, 2u);
  EXPECT_EQ(sequence.Sampling().num_prompt_logprobs, -1);
  sequence.owes_score = true;
  EXPECT_EQ(sequence.Sampling().num_prompt_logprobs, 2);
}

TEST_F(SequenceTest, ThePrefillWorkerOwesTheNextEventWhileItComputes) {
  const ValidRequest body = Body(4);
  SequenceState sequence = Of(body);
  sequence.decode.call = 2;
  for (const State state : {State::kReserving, State::kRebinding, State::kPrefilling,
                            State::kDecoding}) {
    for (const CallId call : {0, 1}) {
      sequence.state = state;
      sequence.prefill.call = call;
      const bool is_prefill = state == State::kPrefilling && call != 0;
      EXPECT_EQ(&sequence.OwingSide(), is_prefill ? &sequence.prefill : &sequence.decode);
    }
  }
}

}  // namespace
}  // namespace baton
