#include "router/node.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/router_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Code = absl::StatusCode;

class RouterNodeTest : public RouterHarness {};

// ---- The way of one request --------------------------------------------------------------------

TEST_F(RouterNodeTest, ReservesThenPrefillsThenStreamsAndEndsOnce) {
  Submit(1, Request(3, 3));
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_TRUE(outbox_.prefills.empty());
  Reserved(decode_call(), 1, 2);
  ASSERT_EQ(outbox_.prefills.size(), 1u);
  const HandoffTarget& target = *outbox_.prefill_requests[0].handoff;
  EXPECT_EQ(target.ticket, (TicketId{8, decode_call()}));
  EXPECT_EQ(target.ranks, (std::vector<DataRank>{{"d:1", {0, 4}}}));
  EXPECT_EQ(target.pair_key, PairKey{3});
  EXPECT_EQ(target.decode, 101u);
  EXPECT_EQ(target.first_token, 2);
  Prefilled(prefill_call(), 3, 50);
  EXPECT_THAT(Seen(1), ElementsAre(50));
  Tokens(decode_call(), 3, 50);
  Closed(prefill_call());
  Tokens(decode_call(), 4, 51);
  EXPECT_EQ(Ended(1), std::nullopt);
  Tokens(decode_call(), 5, 52, FinishReason::kLength);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51, 52));
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.clients[1].ended[0].cached_tokens, 2);
  EXPECT_EQ(node_->counters().stale_tokens, 1);
  EXPECT_TRUE(node_->idle());
}

TEST_F(RouterNodeTest, WorkersGetTheRequestAsItIs) {
  ValidRequest request = Request(3, 9);
  request.tenant = "alice";
  request.sampling.seed = 5;
  now_ += seconds(50);
  Submit(1, request);
  Wait(seconds(2));
  Reserved(decode_call());
  const DecodeRequest& decode = outbox_.decode_requests[0];
  EXPECT_EQ(decode.sequence, (SequenceId{1, 1}));
  EXPECT_EQ(decode.attempt, 1u);
  EXPECT_EQ(decode.prefill, kFirstIncarnation);
  EXPECT_EQ(decode.tokens, request.prompts[0]);
  EXPECT_EQ(decode.prompt_length, 3);
  EXPECT_EQ(decode.sampling, request.sampling);
  EXPECT_EQ(decode.tenant, "alice");
  EXPECT_EQ(decode.timeout, seconds(1000));
  const PrefillRequest& prefill = outbox_.prefill_requests[0];
  EXPECT_EQ(prefill.sequence, decode.sequence);
  EXPECT_EQ(prefill.tokens, decode.tokens);
  EXPECT_EQ(prefill.tenant, "alice");
  EXPECT_EQ(prefill.age, seconds(2));
  EXPECT_EQ(prefill.timeout, seconds(998));
}

TEST_F(RouterNodeTest, ASingleTokenNeedsNoDecodeWorker) {
  Submit(1, Request(3, 1));
  EXPECT_TRUE(outbox_.decodes.empty());
  ASSERT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_FALSE(outbox_.prefill_requests[0].handoff.has_value());
  Handle(WorkerEventReceived{
      prefill_call(),
      PrefilledEvent{.first = TokenOutput{.position = 3, .finish = FinishReason::kLength}}});
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RouterNodeTest, AScoredPromptEndsWithItsScoreAndHasNoToken) {
  ValidRequest request = Request();
  request.score_only = true;
  request.num_choices = 2;
  request.sampling.num_prompt_logprobs = 1;
  Submit(1, request);
  ASSERT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_TRUE(outbox_.prefill_requests[0].score_only);
  Scores(prefill_call(), 1, 3);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
  EXPECT_TRUE(outbox_.clients[1].tokens.empty());
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RouterNodeTest, ChoicesAreNumberedThroughThePromptsAndOnlyTheFirstOwesTheScore) {
  ValidRequest request = Request();
  request.prompts.push_back({8, 8});
  request.num_choices = 2;
  request.sampling.num_prompt_logprobs = 0;
  Submit(1, request);
  ASSERT_EQ(outbox_.decodes.size(), 2u);  // The others follow when there is K/V to share.
  Tokens(outbox_.decodes[0].call, 3, 50);
  Tokens(outbox_.decodes[1].call, 2, 50);
  ASSERT_EQ(outbox_.decodes.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outbox_.decode_requests[i].sampling.choice, i / 2);
    EXPECT_EQ(outbox_.decode_requests[i].tokens, request.prompts[i % 2]);
    EXPECT_EQ(outbox_.decode_requests[i].sampling.num_prompt_logprobs, i < 2 ? 0 : -1);
  }
  Tokens(outbox_.decodes[3].call, 2, 60);
  EXPECT_THAT(Seen(1, 3), ElementsAre(60));
}

TEST_F(RouterNodeTest, EndsWithItsLastChoice) {
  ValidRequest request = Request();
  request.num_choices = 2;
  Submit(1, request);
  Tokens(outbox_.decodes[0].call, 3, 50, FinishReason::kStop);
  EXPECT_EQ(Ended(1), std::nullopt);
  Tokens(outbox_.decodes[1].call, 3, 51, FinishReason::kStop);
  EXPECT_EQ(Ended(1), Code::kOk);
}

// ---- Tokens ------------------------------------------------------------------------------------

TEST_F(RouterNodeTest, EmitsTheFirstTokenFromWhicheverWorkerIsFirst) {
  ToPrefilling(1);
  Tokens(decode_call(), 3, 50);
  Prefilled(prefill_call(), 3, 50);
  EXPECT_THAT(Seen(1), ElementsAre(50));
  EXPECT_EQ(node_->counters().stale_tokens, 1);
}

TEST_F(RouterNodeTest, ACallThatSkipsAPositionIsLostAndNothingOfItIsEmitted) {
  ToDecoding(1);
  const CallId call = decode_call();
  Tokens(call, 5, 52);
  EXPECT_EQ(Ended(1), std::nullopt);
  EXPECT_THAT(Seen(1), testing::Not(testing::Contains(52)));
  EXPECT_THAT(outbox_.cancelled, testing::Contains(call));
}

TEST_F(RouterNodeTest, NothingOfAnEventBehindTheLastTokenIsEmitted) {
  ToDecoding(1);
  Handle(WorkerEventReceived{
      decode_call(),
      TokensEvent{.outputs = {{.position = 4, .token = 51, .finish = FinishReason::kStop},
                              {.position = 5, .token = 52}}}});
  EXPECT_THAT(Seen(1), ElementsAre(50, 51));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RouterNodeTest, EventsOfAnotherAttemptOrTheWrongCallAreStale) {
  ToDecoding(1);
  const int64_t before = node_->counters().stale_mail;
  Tokens(prefill_call(), 4, 51);
  Prefilled(decode_call(), 4, 51);
  Tokens(999, 4, 51);
  Prefilled(prefill_call(), 4, 51);  // A second one.
  Reserved(decode_call());
  EXPECT_EQ(node_->counters().stale_mail - before, 5);
  EXPECT_THAT(Seen(1), ElementsAre(50));
  EXPECT_EQ(outbox_.prefills.size(), 1u);
}

// ---- The client's words ------------------------------------------------------------------------

TEST_F(RouterNodeTest, ACancelInEachStateEndsAllCallsAndTheRequestOnce) {
  Create({.max_pending_prefill_tokens = 1});
  Submit(1, Request());
  Submit(2, Request());  // Queued: the prefill worker has enough.
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  Handle(ClientCancel{2});
  EXPECT_TRUE(outbox_.cancelled.empty());
  const CallId decode = decode_call();
  Handle(ClientCancel{1});  // Reserving.
  EXPECT_THAT(outbox_.cancelled, ElementsAre(decode));
  ToPrefilling(3);
  Handle(ClientCancel{3});  // Prefilling.
  EXPECT_THAT(outbox_.cancelled, ElementsAre(decode, decode_call(), prefill_call()));
  ToDecoding(4);
  Closed(prefill_call());
  Handle(ClientCancel{4});  // Decoding.
  EXPECT_EQ(outbox_.cancelled.size(), 4u);
  Handle(ClientCancel{4});
  for (uint64_t key : {1, 2, 3, 4}) EXPECT_EQ(Ended(key), Code::kCancelled);
  EXPECT_EQ(node_->counters().cancelled, 4);
  EXPECT_TRUE(node_->idle());
}

TEST_F(RouterNodeTest, MailOfCancelledCallsIsStale) {
  ToPrefilling(1);
  Handle(ClientCancel{1});
  const int64_t before = node_->counters().stale_mail;
  Tokens(decode_call(), 3, 50);
  Prefilled(prefill_call(), 3, 50);
  Closed(decode_call(), absl::UnavailableError(""));
  EXPECT_EQ(node_->counters().stale_mail - before, 3);
  EXPECT_TRUE(Seen(1).empty());
}

TEST_F(RouterNodeTest, AStoppedChoiceCountsAsDone) {
  ValidRequest request = Request();
  request.num_choices = 2;
  Submit(1, request);
  Tokens(outbox_.decodes[0].call, 3, 50);
  const auto calls = outbox_.decodes;
  Handle(ClientStop{.request = 1, .choice = 1});
  EXPECT_THAT(outbox_.cancelled, ElementsAre(calls[1].call));
  EXPECT_EQ(Ended(1), std::nullopt);
  Handle(ClientStop{.request = 1, .choice = 1});
  Handle(ClientStop{.request = 1, .choice = 7});
  Handle(ClientStop{.request = 9, .choice = 0});
  EXPECT_EQ(Ended(1), std::nullopt);
  Handle(ClientStop{.request = 1, .choice = 0});
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RouterNodeTest, AStoppedChoiceStillBringsTheScoreItOwes) {
  ValidRequest request = Request();
  request.sampling.num_prompt_logprobs = 0;
  ToPrefilling(1, request);
  Handle(ClientStop{.request = 1, .choice = 0});
  EXPECT_EQ(Ended(1), std::nullopt);
  Scores(prefill_call(), 1, 3);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
  EXPECT_TRUE(Seen(1).empty());
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(RouterNodeTest, TheDeadlineEndsTheRequest) {
  ValidRequest request = Request();
  request.timeout = milliseconds(10);
  ToPrefilling(1, request);
  EXPECT_EQ(node_->NextDeadline(), now_ + milliseconds(10));
  Wait(milliseconds(9));
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(milliseconds(1));
  EXPECT_EQ(Ended(1), Code::kDeadlineExceeded);
  EXPECT_EQ(outbox_.cancelled.size(), 2u);
  EXPECT_GT(node_->NextDeadline(), now_ + std::chrono::hours(1000));
}

TEST_F(RouterNodeTest, AKeyThatLivesIsNotTakenTwice) {
  Submit(1, Request());
  Submit(1, Request());
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(Ended(1), std::nullopt);
}

// ---- Ends of calls -----------------------------------------------------------------------------

TEST_F(RouterNodeTest, OneChoiceThatFailsEndsTheWholeRequest) {
  ValidRequest request = Request();
  request.num_choices = 2;
  Submit(1, request);
  Tokens(outbox_.decodes[0].call, 3, 50);
  const auto calls = outbox_.decodes;
  Closed(calls[0].call, absl::InvalidArgumentError("no"));
  EXPECT_EQ(Ended(1), Code::kInvalidArgument);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(calls[1].call));
}

TEST_F(RouterNodeTest, MailForWhatWasNeverHereIsStale) {
  Handle(ClientCancel{5});
  Closed(77);
  EXPECT_EQ(node_->counters().stale_mail, 2);
}

}  // namespace
}  // namespace baton
