#include "router/pair_choice.h"

#include "gtest/gtest.h"
#include "tests/unit/router/sequence_builder.h"
#include "tests/unit/router/worker_directory_fixture.h"

namespace baton {
namespace {

constexpr Duration kAloneAfter = std::chrono::seconds(2);

// Workers 0 and 1 prefill, 2 and 3 decode; their incarnations are 10 to 13.
class PairChoiceTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int32_t i = 0; i < 4; ++i) Up(i);
    pairs_.BeginTurn();
  }
  void Up(int32_t worker) {
    HelloInfo hello = Hello(worker < 2 ? Role::kPrefill : Role::kDecode, 10 + worker);
    hello.computes_prompts = worker >= 2;
    directory_.OnUp(worker, hello, now_);
  }
  std::optional<Route> Found(const SequenceState& sequence) const {
    const std::optional<PairChoice::Found> found = pairs_.Find(sequence, now_);
    if (!found) return std::nullopt;
    return found->route;
  }

  Time now_ = At(0);
  RouterNodeOptions options_;
  RouterCounters counters_;
  WorkerDirectory directory_{{Role::kPrefill, Role::kPrefill, Role::kDecode, Role::kDecode},
                             std::chrono::seconds(3),
                             kAloneAfter};
  Recovery recovery_{options_, directory_, counters_};
  RoomClaims claims_{std::chrono::seconds(1)};
  PrefixDirectory prefixes_{100};
  PairChoice pairs_{options_,
                    {directory_, recovery_, claims_, prefixes_},
                    MakeRoutingPolicy("least_loaded").value()};
  SequenceBuilder sequences_;
  SequenceState& first_ = sequences_.New();
  SequenceState& second_ = sequences_.New();
};

TEST_F(PairChoiceTest, WhoFailedASequenceIsPassedOverWhileThereIsAnother) {
  EXPECT_EQ(Found(first_), (Route{0, 2}));
  first_.lost = {10, 12};
  EXPECT_EQ(Found(first_), (Route{1, 3}));
  EXPECT_EQ(Found(second_), (Route{0, 2})) << "it has failed another one only";
  first_.lost = {10, 11, 12, 13};
  EXPECT_EQ(Found(first_), (Route{0, 2}));
}

TEST_F(PairChoiceTest, TheSideThatIsHeldIsGiven) {
  directory_.Take(first_.decode, 3, 5);
  first_.decode.call = 1;
  first_.base = first_.PromptLength();
  EXPECT_EQ(Found(first_), (Route{0, 3}));
  directory_.Skip(3, At(1000));
  EXPECT_EQ(Found(first_), (Route{0, 3})) << "it is not asked again";
  EXPECT_EQ(Found(second_), (Route{0, 2}));
}

TEST_F(PairChoiceTest, AClaimKeepsAWorkerForItsSequence) {
  claims_.Keep(first_, 2, now_);
  EXPECT_EQ(Found(second_), (Route{0, 3}));
  EXPECT_EQ(Found(first_), (Route{0, 2}));
}

TEST_F(PairChoiceTest, WhatIsReservedIsForNobodyBehindUntilTheNextTurn) {
  for (const int32_t decode : {2, 3}) directory_.Skip(decode, At(1000));
  EXPECT_EQ(Found(first_), std::nullopt);
  EXPECT_FALSE(pairs_.IsDecodeReserved(2));
  EXPECT_TRUE(pairs_.Reserve(first_, now_)) << "who needs no decode worker can go on";
  EXPECT_TRUE(pairs_.IsDecodeReserved(2));
  now_ = At(1000);  // They may be asked again, and are for the first.
  EXPECT_EQ(Found(second_), std::nullopt);
  pairs_.BeginTurn();
  EXPECT_FALSE(pairs_.IsDecodeReserved(2));
  EXPECT_EQ(Found(second_), (Route{0, 2}));
}

TEST_F(PairChoiceTest, BehindOneThatLacksAnyPrefillWorkerNobodyCanGo) {
  for (const int32_t prefill : {0, 1}) directory_.Skip(prefill, At(1000));
  EXPECT_FALSE(pairs_.Reserve(first_, now_));
  EXPECT_FALSE(pairs_.IsDecodeReserved(2)) << "it does not lack these";
}

TEST_F(PairChoiceTest, OfDecodeWorkersThatAreAloneAScoredPromptKeepsThoseThatScore) {
  for (const int32_t prefill : {0, 1}) directory_.OnDown(prefill, "gone", now_);
  HelloInfo scores = directory_.workers()[2].hello;
  scores.scores_prompts = true;
  directory_.OnUp(2, scores, now_);
  now_ += kAloneAfter;
  directory_.Skip(2, now_ + std::chrono::seconds(1));
  const_cast<ValidRequest*>(first_.body)->sampling.num_prompt_logprobs = 0;
  first_.owes_score = true;
  EXPECT_EQ(Found(first_), std::nullopt);
  EXPECT_TRUE(pairs_.Reserve(first_, now_));
  EXPECT_TRUE(pairs_.IsDecodeReserved(2));
  EXPECT_FALSE(pairs_.IsDecodeReserved(3)) << "it would not take it";
  EXPECT_EQ(Found(second_), (Route{-1, 3}));
}

TEST_F(PairChoiceTest, OfDecodeWorkersInAPairAScoredPromptKeepsAll) {
  for (const int32_t decode : {2, 3}) directory_.Skip(decode, At(1000));
  first_.owes_score = true;
  EXPECT_TRUE(pairs_.Reserve(first_, now_));
  for (const int32_t decode : {2, 3}) EXPECT_TRUE(pairs_.IsDecodeReserved(decode));
}

TEST_F(PairChoiceTest, ADecodeWorkerIsFoundAloneOnceItsTimeHasCome) {
  for (const int32_t prefill : {0, 1}) directory_.OnDown(prefill, "gone", now_);
  EXPECT_EQ(Found(first_), std::nullopt);
  now_ += kAloneAfter;
  const std::optional<PairChoice::Found> found = pairs_.Find(first_, now_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->need.alone);
  EXPECT_EQ(found->route, (Route{-1, 2}));
  directory_.Take(second_.decode, 2, 5);
  second_.decode.call = 1;
  second_.base = second_.PromptLength();
  EXPECT_EQ(Found(second_), std::nullopt) << "what it holds is held for a prefill worker";
}

TEST_F(PairChoiceTest, AnAnswerThatWasBegunWaitsAsLongAsARecovery) {
  options_.no_worker_grace = std::chrono::seconds(5);
  options_.recovery_grace = std::chrono::seconds(9);
  first_.queued_since = At(4000);
  for (const int32_t prefill : {0, 1}) directory_.OnDown(prefill, "gone", At(1000));
  for (const int32_t decode : {2, 3}) directory_.OnDown(decode, "gone", At(1000));
  EXPECT_EQ(pairs_.GivesUpAt(second_), At(6000)) << "from when the last pair went";
  EXPECT_EQ(pairs_.GivesUpAt(first_), At(9000)) << "from when it queued";
  first_.attempt = 1;
  EXPECT_EQ(pairs_.GivesUpAt(first_), At(13000));
}

}  // namespace
}  // namespace baton
