// A prompt's log probabilities: pieces, their order, and what is lost in the middle.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using Code = absl::StatusCode;

class ScoresTest : public RecoveryHarness {
 protected:
  // Asks for the log probabilities of six tokens and one alternative of each.
  static ValidRequest WithScores(bool score_only = false) {
    ValidRequest request = Request(6, 4);
    request.sampling.num_prompt_logprobs = 1;
    request.score_only = score_only;
    return request;
  }

  void Piece(CallId call, std::vector<PromptLogprob> logprobs) {
    Handle(WorkerEventReceived{call, ScoresEvent{.logprobs = std::move(logprobs)}});
  }
  // The worker whose call was given up is heard of again, so that is a retry.
  void JudgedHealthy(int32_t worker) {
    Wait(milliseconds(1));
    Heard(worker);
    Judged();
  }
  int32_t prefill_worker() const { return outbox_.prefills.back().worker; }
};

TEST_F(ScoresTest, PiecesReachTheClientAsTheyCome) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 4);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3));
  Scores(prefill_call(), 4, 6);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(Ended(1), std::nullopt);
  Prefilled(prefill_call(), 6, 50);
  EXPECT_THAT(Seen(1), ElementsAre(50));
  EXPECT_EQ(node_->counters().moves + node_->counters().retries, 0);
  EXPECT_EQ(node_->counters().stale_mail, 0);
}

TEST_F(ScoresTest, AnotherAttemptBeginsAgainAndTheClientSeesEachPositionOnce) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 4);
  Kill(prefill_worker(), {prefill_call()});
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_EQ(last_prefill().sampling.num_prompt_logprobs, 1);
  Scores(prefill_call(), 1, 2, 2);
  Scores(prefill_call(), 2, 5, 2);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4));
  Scores(prefill_call(), 5, 6, 2);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  for (const PromptScored& piece : outbox_.clients[1].scored) EXPECT_FALSE(piece.logprobs.empty());
  EXPECT_EQ(node_->counters().moves, 1);
}

TEST_F(ScoresTest, WhatDoesNotFitIsALossOfThatSide) {
  const PromptLogprob good{.position = 3, .token = 7, .top = {{9, -1}}};
  std::vector<std::vector<PromptLogprob>> bad(5, {good});
  bad[0][0].position = 4;             // A gap.
  bad[1][0].position = 0;             // Before the first.
  bad[2][0].token = 8;                // Another prompt's.
  bad[3][0].top.push_back({10, -2});  // More than was asked for.
  bad[4] = {good, good};              // A gap within the piece.
  bad[4][1].position = 5;
  for (const auto& logprobs : bad) {
    SetUp();
    outbox_ = {};
    ToPrefilling(1, WithScores());
    Scores(prefill_call(), 1, 3);
    const CallId bad_call = prefill_call();
    Piece(bad_call, logprobs);
    EXPECT_THAT(outbox_.cancelled, ElementsAre(bad_call));
    EXPECT_EQ(Scored(1).size(), 1 + logprobs.size());  // What came before it was right.
    EXPECT_EQ(Ended(1), std::nullopt);
    JudgedHealthy(prefill_worker());
    Reserved(decode_call(), 2);
    ASSERT_EQ(outbox_.prefills.size(), 2u);
    Scores(prefill_call(), 1, 6, 2);
    EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  }
  SetUp();
  outbox_ = {};
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 3);
  Piece(prefill_call(), {good});
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3));
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

TEST_F(ScoresTest, WhatLiesBeyondThePromptIsALossToo) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 7);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill_call()));
}

TEST_F(ScoresTest, APieceThatComesTwiceIsSeenOnce) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 4);
  Scores(prefill_call(), 1, 4);
  Scores(prefill_call(), 3, 5);
  const PromptLogprob last{.position = 5, .token = 7};
  Piece(prefill_call(), {last, last});
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

TEST_F(ScoresTest, APrefilledPromptWhoseScoreIsIncompleteIsALoss) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 5);
  const CallId first = prefill_call();
  Prefilled(first, 6, 50);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(first));
  EXPECT_TRUE(Seen(1).empty());
  JudgedHealthy(prefill_worker());
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  Scores(prefill_call(), 1, 6, 2);
  Prefilled(prefill_call(), 6, 50, 2);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(Seen(1), ElementsAre(50));
}

TEST_F(ScoresTest, EachPieceIsProgressOfItsSequence) {
  Create({.no_progress_limit = seconds(10)});
  ToPrefilling(1, WithScores());
  for (int32_t p = 1; p < 4; ++p) {
    Wait(seconds(9));
    Scores(prefill_call(), p, p + 1);
  }
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(seconds(11));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(ScoresTest, OnesThatNobodyAskedForOrThatComeTooLateAreNoOps) {
  ToPrefilling(1, Request(6, 4));
  Scores(prefill_call(), 1, 6);
  EXPECT_THAT(Scored(1), IsEmpty());
  EXPECT_EQ(node_->counters().stale_mail, 1);
  ToPrefilling(2, WithScores());
  Scores(decode_call(), 1, 6);  // Not a decode worker's word.
  EXPECT_THAT(Scored(2), IsEmpty());
  Scores(prefill_call(), 1, 6);
  Prefilled(prefill_call(), 6, 50);
  Scores(prefill_call(), 1, 6);
  EXPECT_THAT(Scored(2), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(node_->counters().stale_mail, 3);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

TEST_F(ScoresTest, AStopInTheMiddleWaitsForTheRestAndForNothingElse) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 3);
  Handle(ClientStop{.request = 1, .choice = 0});
  EXPECT_THAT(outbox_.cancelled, ElementsAre(decode_call()));
  Scores(prefill_call(), 3, 5);
  EXPECT_EQ(Ended(1), std::nullopt);
  Scores(prefill_call(), 5, 6);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_TRUE(node_->idle());
}

TEST_F(ScoresTest, ACancelInTheMiddleEndsItAndLaterPiecesAreNoOps) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 3);
  Handle(ClientCancel{.request = 1});
  EXPECT_EQ(Ended(1), Code::kCancelled);
  EXPECT_TRUE(node_->idle());
  Scores(prefill_call(), 3, 6);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
}

TEST_F(ScoresTest, AScoreNeedsNothingAfterItsLastPiece) {
  Submit(1, WithScores(/*score_only=*/true));
  Scores(prefill_call(), 1, 5);
  EXPECT_EQ(Ended(1), std::nullopt);
  Scores(prefill_call(), 5, 6);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
}

TEST_F(ScoresTest, AScoreLostInTheMiddleIsSoughtWithoutADecodeWorker) {
  Submit(1, WithScores(/*score_only=*/true));
  Scores(prefill_call(), 1, 5);
  Kill(prefill_worker(), {prefill_call()});
  Judged();
  ASSERT_EQ(outbox_.prefills.size(), 2u);
  EXPECT_TRUE(last_prefill().score_only);
  EXPECT_TRUE(outbox_.decodes.empty());
  Scores(prefill_call(), 1, 6, 2);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(ScoresTest, PiecesGoOnWhileTheDecodeWorkerAnswers) {
  ToPrefilling(1, WithScores());
  Scores(prefill_call(), 1, 3);
  Handle(WorkerEventReceived{decode_call(), TokensEvent{.outputs = {}}});  // It has the KV.
  Tokens(decode_call(), 6, 50);
  Scores(prefill_call(), 3, 6);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2, 3, 4, 5));
  Prefilled(prefill_call(), 6, 50);
  Tokens(decode_call(), 7, 51, FinishReason::kStop);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(ScoresTest, AWorkerThatAlwaysGapsCostsTheRequestAfterItsRetries) {
  Submit(1, WithScores(/*score_only=*/true));
  for (int tries = 0; tries < 10 && !Ended(1); ++tries) {
    Scores(prefill_call(), 2, 3);
    JudgedHealthy(prefill_worker());
  }
  EXPECT_EQ(Ended(1), Code::kUnavailable);
  EXPECT_EQ(outbox_.prefills.size(), 3u);
  EXPECT_THAT(Scored(1), IsEmpty());
}

TEST_F(ScoresTest, APromptOfOneTokenHasNone) {
  ValidRequest request = WithScores();
  request.prompts = {{7}};
  ToPrefilling(1, request);
  EXPECT_EQ(last_prefill().sampling.num_prompt_logprobs, -1);
  Prefilled(prefill_call(), 1, 50);
  EXPECT_THAT(Seen(1), ElementsAre(50));
  EXPECT_THAT(Scored(1), IsEmpty());
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

}  // namespace
}  // namespace baton
