#include "common/model/read_results.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton {
namespace {

// Two rows of two alternatives each.
class ReadResultsTest : public testing::Test {
 protected:
  std::vector<int32_t> tokens_ = {9, 9, 4, 6};
  std::vector<float> logits_ = {9, 9, 2, 1};
  const TopTokens top_{tokens_.data(), logits_.data(), 2};
};

TEST_F(ReadResultsTest, LogProbabilitiesAreThoseOfTheRowsOwnSum) {
  // Weights of 1.5 in all.
  const SampleResult result{.token = 6, .token_logit = 1, .max = 2, .sum = kWeightOne * 3 / 2};
  const TokenOutput output = ReadSample(result, top_, 1, 2, 17);
  const double log_sum = 2 + std::log(1.5);
  EXPECT_EQ(output.position, 17);
  EXPECT_EQ(output.token, 6);
  EXPECT_FLOAT_EQ(output.logprob, static_cast<float>(1 - log_sum));
  ASSERT_EQ(output.top.size(), 2u);
  EXPECT_EQ(output.top[0].token, 4);
  EXPECT_FLOAT_EQ(output.top[0].logprob, static_cast<float>(2 - log_sum));
  EXPECT_EQ(output.top[1].token, 6);
  const ScoreResult score{.token_logit = 1, .max = 2, .rank = 2, .sum = kWeightOne * 3 / 2};
  const PromptLogprob read = ReadScore(score, top_, 1, 2, 17, 6);
  EXPECT_EQ(read.logprob, output.logprob);
  EXPECT_EQ(read.top, output.top);
  EXPECT_EQ(read.rank, 2);
  EXPECT_EQ(read.position, 17);
  EXPECT_EQ(read.token, 6);
}

TEST_F(ReadResultsTest, WhatWasNotAskedForIsNotRead) {
  const TokenOutput output = ReadSample({.token = 3}, {}, 0, -1, 5);
  EXPECT_EQ(output, (TokenOutput{.position = 5, .token = 3}));
  const TokenOutput chosen = ReadSample({.token = 3, .sum = kWeightOne}, {}, 0, 0, 5);
  EXPECT_EQ(chosen, (TokenOutput{.position = 5, .token = 3, .logprob = 0}));
}

TEST_F(ReadResultsTest, BadLogitsNameTheirPosition) {
  EXPECT_EQ(BadLogits(12), absl::InternalError("the logits of position 12 are not finite: no token "
                                               "can be told"));
}

}  // namespace
}  // namespace baton
