#include "common/engine/sequence.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

const std::vector<int32_t> kEos = {1, 2};

TEST(FinishAfterTest, GoesOnBelowMaxTokens) {
  EXPECT_EQ(FinishAfter({.max_tokens = 3}, kEos, 5, 2), FinishReason::kNone);
}

TEST(FinishAfterTest, StopsForLengthAtTheLastAllowedToken) {
  EXPECT_EQ(FinishAfter({.max_tokens = 3}, kEos, 5, 3), FinishReason::kLength);
}

TEST(FinishAfterTest, AnyOfTheModelsEndTokensStops) {
  EXPECT_EQ(FinishAfter({.max_tokens = 3}, kEos, 2, 1), FinishReason::kStop);
}

TEST(FinishAfterTest, AnIgnoredEndTokenIsATokenLikeAnyOther) {
  EXPECT_EQ(FinishAfter({.max_tokens = 3, .ignore_eos = true}, kEos, 2, 1), FinishReason::kNone);
  EXPECT_EQ(FinishAfter({.max_tokens = 3, .ignore_eos = true}, kEos, 2, 3), FinishReason::kLength);
}

TEST(FinishAfterTest, AStopTokenOfTheRequestStopsEvenWhenEndTokensAreIgnored) {
  const SamplingParams params{.max_tokens = 3, .ignore_eos = true, .stop_token_ids = {7}};
  EXPECT_EQ(FinishAfter(params, kEos, 7, 1), FinishReason::kStop);
}

TEST(FinishAfterTest, StopWinsOverLength) {
  EXPECT_EQ(FinishAfter({.max_tokens = 3}, kEos, 1, 3), FinishReason::kStop);
}

TEST(AgeKeyTest, OlderArrivalsComeFirstThenIdsThenCalls) {
  const Time t{std::chrono::seconds(1)};
  EXPECT_LT((AgeKey{t, {9, 9}, 9}), (AgeKey{t + Duration(1), {1, 1}, 1}));
  EXPECT_LT((AgeKey{t, {1, 1}, 9}), (AgeKey{t, {1, 2}, 1}));
  EXPECT_LT((AgeKey{t, {1, 1}, 1}), (AgeKey{t, {1, 1}, 2}));
}

}  // namespace
}  // namespace baton
