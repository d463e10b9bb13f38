#include "router/client_output.h"

#include "gtest/gtest.h"
#include "tests/unit/router/router_harness.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

// A sequence with a prompt of 3 tokens, each a 7, and an answer of at most 4.
class ClientOutputTest : public testing::Test {
 protected:
  void SetUp() override {
    const_cast<ValidRequest*>(sequence_.body)->sampling.num_prompt_logprobs = 0;
    ASSERT_TRUE(queue_.Admit(sequence_.request, *sequence_.body, Time{}).ok());
  }
  absl::Status Tokens(std::vector<TokenOutput> outputs) {
    return output_.Tokens(sequence_, outputs);
  }
  absl::Status Scores(int32_t begin, int32_t end) {
    std::vector<PromptLogprob> scores;
    for (int32_t p = begin; p < end; ++p) scores.push_back({.position = p, .token = 7});
    return output_.Scores(sequence_, scores);
  }
  std::vector<int32_t> Seen() {
    std::vector<int32_t> tokens;
    for (const TokenOutput& output : client().tokens[0]) tokens.push_back(output.token);
    return tokens;
  }
  std::vector<int32_t> Scored() {
    std::vector<int32_t> positions;
    for (const PromptScored& scored : client().scored) {
      for (const PromptLogprob& one : scored.logprobs) positions.push_back(one.position);
    }
    return positions;
  }
  RecordingRouterOutbox::Client& client() { return outbox_.clients[sequence_.request]; }
  VirtualCounter Paid() { return queue_.AccountOf(sequence_.request)->counter / 1024; }

  const RouterNodeOptions options_;
  AdmissionQueue queue_{options_};
  Charges charges_{queue_};
  RouterCounters counters_;
  RecordingRouterOutbox outbox_;
  ClientOutput output_{outbox_, charges_, counters_};
  SequenceBuilder sequences_;
  SequenceState& sequence_ = sequences_.New();
};

TEST_F(ClientOutputTest, TheFirstCopyOfAPositionIsEmittedAndNoOther) {
  EXPECT_TRUE(Tokens({{.position = 3, .token = 50}}).ok());
  EXPECT_TRUE(Tokens({{.position = 3, .token = 50}, {.position = 4, .token = 51}}).ok());
  EXPECT_EQ(Seen(), (std::vector<int32_t>{50, 51}));
  EXPECT_EQ(sequence_.emitted, (std::vector<int32_t>{50, 51}));
  EXPECT_EQ(counters_.stale_tokens, 1);
  EXPECT_EQ(Paid(), 2 * kAnswerWeight) << "a copy costs nothing";
}

TEST_F(ClientOutputTest, WhatStandsBeforeASkippedPositionIsEmitted) {
  const absl::Status bad = Tokens({{.position = 3, .token = 50}, {.position = 5, .token = 52}});
  EXPECT_TRUE(absl::IsDataLoss(bad));
  EXPECT_EQ(Seen(), std::vector<int32_t>{50});
  EXPECT_EQ(sequence_.NextPosition(), 4);
}

TEST_F(ClientOutputTest, NothingIsEmittedBehindTheLastToken) {
  EXPECT_TRUE(Tokens({{.position = 3, .token = 2, .finish = FinishReason::kStop},
                      {.position = 4, .token = 51}})
                  .ok());
  EXPECT_TRUE(sequence_.finished);
  EXPECT_EQ(Seen(), std::vector<int32_t>{2});
  EXPECT_EQ(counters_.stale_tokens, 1);
}

TEST_F(ClientOutputTest, OnlyATokenForTheClientIsProgressOfAReturn) {
  EXPECT_TRUE(Tokens({{.position = 3, .token = 50}}).ok());
  sequence_.back.times = 2;
  EXPECT_TRUE(Tokens({{.position = 3, .token = 50}}).ok());
  EXPECT_EQ(sequence_.back.times, 2);
  EXPECT_TRUE(Tokens({{.position = 4, .token = 51}}).ok());
  EXPECT_EQ(sequence_.back.times, 0);
}

TEST_F(ClientOutputTest, ScoresOfASecondCallGoOnWhereTheClientIs) {
  sequence_.owes_score = true;
  EXPECT_TRUE(Scores(1, 2).ok());
  EXPECT_TRUE(sequence_.owes_score);
  sequence_.call_score = 1;  // Another Prefill call.
  EXPECT_TRUE(Scores(1, 3).ok());
  EXPECT_EQ(Scored(), (std::vector<int32_t>{1, 2}));
  EXPECT_FALSE(sequence_.owes_score) << "the client has all of them";
}

TEST_F(ClientOutputTest, AGapInScoresIsAnErrorAndStillOwed) {
  sequence_.owes_score = true;
  EXPECT_TRUE(absl::IsDataLoss(Scores(2, 3)));
  EXPECT_TRUE(Scored().empty());
  EXPECT_TRUE(sequence_.owes_score);
}

}  // namespace
}  // namespace baton
