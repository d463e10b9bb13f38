// What calls tell, good and bad, and what of it counts. Ranges are in event_checks_test.cc.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using Code = absl::StatusCode;

class WorkerEventsTest : public RecoveryHarness {
 protected:
  Time LastToken(int32_t worker) const { return node_->View().workers[worker].last_token; }
};

TEST_F(WorkerEventsTest, TheFirstTokenOfADecodeWorkerProvesBothAndLaterOnesItself) {
  ToPrefilling(1);
  now_ += seconds(1);
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 3, 50);
  EXPECT_EQ(LastToken(1), Time{}) << "the prefill worker has told it first";
  now_ += seconds(1);
  Tokens(decode_call(), 4, 51);
  EXPECT_EQ(LastToken(0), now_);
  EXPECT_EQ(LastToken(1), now_);
  now_ += seconds(1);
  Tokens(decode_call(), 5, 52);
  EXPECT_EQ(LastToken(0), now_ - seconds(1));
  EXPECT_EQ(LastToken(1), now_);
}

TEST_F(WorkerEventsTest, ATokenOfAProcessThatHasGoneProvesNothingOfTheOneInItsPlace) {
  ToDecoding(1);
  now_ += seconds(1);
  Up(1, 500);
  Tokens(decode_call(), 4, 51);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
  EXPECT_EQ(LastToken(1), Time{});
  EXPECT_EQ(LastToken(0), now_);
}

TEST_F(WorkerEventsTest, AnOldPositionIsNoNewsWhateverIsSaidOfIt) {
  ToPrefilling(1, Request(3, 2));
  Tokens(decode_call(), 3, 50);
  Prefilled(prefill_call(), 3, 50);  // As the second and last one it would lack its finish.
  EXPECT_TRUE(outbox_.cancelled.empty());
}

TEST_F(WorkerEventsTest, TheTokensBeforeABadOneStandAndProveNothing) {
  ToPrefilling(1);
  now_ += seconds(1);
  Handle(WorkerEventReceived{
      decode_call(), TokensEvent{.attempt = 1,
                                 .outputs = {{.position = 3, .token = 50},
                                             {.position = 5, .token = 52}}}});
  EXPECT_EQ(LastToken(0), Time{}) << "no proof of the prefill worker";
  EXPECT_EQ(LastToken(1), Time{});
  EXPECT_THAT(Seen(1), ElementsAre(50));
  EXPECT_EQ(outbox_.cancelled.size(), 1u) << "the decode call alone is lost";
}

TEST_F(WorkerEventsTest, ABadFirstTokenOfTheDecodeWorkerLeavesTheKvThatIsThere) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 5, 52);
  Judged();
  Heard(1);
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.sends.size(), 1u);
  EXPECT_EQ(outbox_.prefills.size(), 1u) << "no second prefill";
}

TEST_F(WorkerEventsTest, ABadEventDoesNotBreakTheSilence) {
  for (const bool is_score : {false, true}) {
    Create({}, true, {Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill});
    ValidRequest request = Request(3, 9);
    request.sampling.num_prompt_logprobs = 0;
    ToPrefilling(1, request);
    Tokens(decode_call(), 3, 50);
    Sleep(seconds(20));
    // The answer goes on without the prefill call, whose score is sought at its end.
    if (is_score) {
      Scores(prefill_call(), 2, 3);
    } else {
      Prefilled(prefill_call(), 3, 50);
    }
    Sleep(seconds(10));
    EXPECT_EQ(outbox_.clients[1].ended.size(), 1u) << is_score;
    outbox_.clients.clear();
  }
}

// Its own answer is complete: what is wrong with the rest of the message is nobody's loss.
TEST_F(WorkerEventsTest, ABadScoreBehindTheLastThatIsOwedEndsTheAnswerWell) {
  ValidRequest request = Request(3, 9);
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Tokens(decode_call(), 3, 50);
  Handle(ClientStop{.request = 1, .choice = 0});
  ASSERT_TRUE(outbox_.clients[1].ended.empty()) << "its score is owed";
  Scores(prefill_call(), 1, 5);  // The prompt has three tokens: the third is no position of it.
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(WorkerEventsTest, OfAWordThatComesTooLateNothingIsBroken) {
  ToDecoding(1, Request(3, 9));
  Sleep(seconds(20));
  HandoffFailed(prefill_call(), 1);
  Reserved(decode_call());
  Sleep(seconds(10));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

// The decode worker refused the token that the prefill worker then tells the router.
TEST_F(WorkerEventsTest, ABadFirstTokenClimbsOneRung) {
  ToPrefilling(1);
  HandoffFailed(decode_call(), 1);
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  Prefilled(prefill_call(), 5, 50);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill_call()));
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.prefills.size(), 1u) << "the prefill worker that failed is not asked again";
  Judged();
  Heard(0);
  Judged();
  ASSERT_EQ(outbox_.rebinds.size(), 2u);
  EXPECT_EQ(outbox_.rebinds[1].second.prefill, incarnation(3));
  Reserved(decode_call(), 3);
  EXPECT_EQ(outbox_.prefills.back().worker, 3);
  EXPECT_EQ(node_->counters().handoff_failures, 1);
  EXPECT_EQ(node_->counters().retries, 1);
}

}  // namespace
}  // namespace baton
