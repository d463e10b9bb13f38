// Giving sequences to workers and taking them back: the part of RouterNode in dispatch.cc.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/error.h"
#include "router/node.h"
#include "tests/unit/router/router_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using Code = absl::StatusCode;

class DispatchTest : public RouterHarness {
 protected:
  // No worker refuses, the prefill worker is kept busy by request 100.
  void OccupyPrefill() {
    Create({.max_pending_prefill_tokens = 1});
    Submit(100, Request());
  }
};

TEST_F(DispatchTest, RefusesAtOnceWhatTheQueueCannotHold) {
  Create({.max_queued_requests = 1, .max_pending_prefill_tokens = 1});
  Submit(1, Request());
  Submit(2, Request());
  Submit(3, Request());
  EXPECT_EQ(Ended(3), Code::kResourceExhausted);
  EXPECT_EQ(Ended(2), std::nullopt);
  EXPECT_EQ(node_->counters().refused, 1);
  Handle(ClientCancel{2});
  Submit(4, Request());
  EXPECT_EQ(Ended(4), std::nullopt);
}

TEST_F(DispatchTest, TheQueueIsCappedInTokensAndBytesToo) {
  Create({.max_queued_tokens = 10, .max_queued_bytes = 100, .max_pending_prefill_tokens = 1});
  const auto request = [](int32_t tokens, int64_t bytes) {
    ValidRequest made = Request(tokens);
    made.bytes = bytes;
    return made;
  };
  Submit(1, request(3, 60));  // Given to the workers at once.
  Submit(2, request(6, 60));
  Submit(3, request(5, 1));
  EXPECT_EQ(Ended(3), Code::kResourceExhausted);
  Submit(4, request(1, 41));
  EXPECT_EQ(Ended(4), Code::kResourceExhausted);
  Submit(5, request(4, 40));
  EXPECT_EQ(Ended(5), std::nullopt);
  Handle(ClientCancel{2});
  Submit(6, request(6, 60));
  EXPECT_EQ(Ended(6), std::nullopt);
}

TEST_F(DispatchTest, WhatAnEmptyQueueWouldNotHoldIsRefusedForGood) {
  Create({.max_queued_tokens = 10, .max_queued_bytes = 100, .max_pending_prefill_tokens = 1});
  ValidRequest largest = Request(4);
  largest.prompts.push_back(std::vector<int32_t>(6, 7));
  largest.bytes = 100;
  Submit(1, largest);
  EXPECT_EQ(Ended(1), std::nullopt);
  ValidRequest long_prompts = largest;
  long_prompts.prompts[1].push_back(7);
  long_prompts.prompt_param = "messages";
  Submit(2, long_prompts);
  ASSERT_EQ(Ended(2), Code::kInvalidArgument);
  const absl::Status& too_long = outbox_.clients[2].ended[0].status;
  EXPECT_EQ(ErrorParam(too_long), "messages");
  EXPECT_THAT(std::string(too_long.message()),
              HasSubstr("messages has 11 tokens; this server takes at most 10"));
  EXPECT_FALSE(IsRequestTooLarge(too_long));
  ValidRequest large = largest;
  large.bytes = 101;
  Submit(3, large);
  ASSERT_EQ(Ended(3), Code::kInvalidArgument);
  const absl::Status& too_large = outbox_.clients[3].ended[0].status;
  EXPECT_TRUE(IsRequestTooLarge(too_large));
  EXPECT_THAT(std::string(too_large.message()), HasSubstr("101 bytes; at most 100"));
  EXPECT_EQ(node_->counters().refused, 2);
}

TEST_F(DispatchTest, TooManySequencesAreAnInvalidArgument) {
  ValidRequest request = Request(3, 1);
  request.prompts.push_back(request.prompts[0]);
  request.num_choices = kMaxSequencesPerRequest / 2;
  Submit(1, request);
  EXPECT_EQ(Ended(1), std::nullopt);
  ++request.num_choices;
  Submit(2, request);
  ASSERT_EQ(Ended(2), Code::kInvalidArgument);
  EXPECT_EQ(ErrorParam(outbox_.clients[2].ended[0].status), "n");
  request.num_choices = 0;
  Submit(3, request);
  EXPECT_EQ(Ended(3), Code::kInvalidArgument);
}

TEST_F(DispatchTest, WhatNoPairCanEverHoldIsRefusedWithTheLargestThatFits) {
  Submit(1, Request(150, 51));
  EXPECT_EQ(Ended(1), Code::kInvalidArgument);
  EXPECT_THAT(std::string(outbox_.clients[1].ended[0].status.message()),
              HasSubstr("the largest that fits is 200"));
  EXPECT_EQ(ErrorParam(outbox_.clients[1].ended[0].status), "prompt");
  EXPECT_EQ(ErrorCode(outbox_.clients[1].ended[0].status), "context_length_exceeded");
  EXPECT_TRUE(outbox_.decodes.empty());
}

// ---- Workers that come and go ------------------------------------------------------------------

TEST_F(DispatchTest, AWorkerThatIsForgottenWhileItWaitsForAReservationIsReplaced) {
  Submit(1, Request());
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  // Its index goes to a decode worker, and a prefill worker comes under a new one.
  Handle(WorkerDown{.worker = 0, .reason = "lost"});
  Handle(WorkerForgotten{.worker = 0});
  Handle(WorkerListed{.worker = 0, .role = Role::kDecode, .address = "d:1"});
  Handle(WorkerListed{.worker = 3, .role = Role::kPrefill, .address = "p:1"});
  roles_ = {Role::kDecode, Role::kDecode, Role::kDecode, Role::kPrefill};
  Up(0, 200);
  Up(3, 203);
  Reserved(decode_call());
  Wait(seconds(1));
  ASSERT_EQ(outbox_.rebinds.size(), 1u);
  EXPECT_EQ(outbox_.rebinds[0].second.prefill, 203u);
  Reserved(decode_call(), 2);
  ASSERT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_EQ(outbox_.prefills[0].worker, 3);
  Handle(ClientCancel{.request = 1});
  EXPECT_TRUE(node_->idle());
  EXPECT_EQ(node_->counters().workers_listed, 2);
  EXPECT_EQ(node_->counters().workers_forgotten, 1);
}

TEST_F(DispatchTest, TheViewHasThoseThatAreListedWithTheirAddresses) {
  Handle(WorkerForgotten{.worker = 1});
  Handle(WorkerListed{.worker = 3, .role = Role::kPrefill, .address = "p:1"});
  const RouterView view = node_->View();
  ASSERT_EQ(view.workers.size(), 3u);
  EXPECT_EQ(view.workers[0].index, 0);
  EXPECT_EQ(view.workers[1].index, 2);
  EXPECT_EQ(view.workers[2].index, 3);
  EXPECT_EQ(view.workers[2].address, "p:1");
  EXPECT_FALSE(view.workers[2].healthy);
  EXPECT_EQ(view.workers[2].reason, "not connected yet");
}

// ---- Waiting for a pair ------------------------------------------------------------------------

TEST_F(DispatchTest, WhatOnlyAWorkerThatIsGoneCouldHoldWaitsForItAndIsNotRefusedForGood) {
  Up(2, 102, /*max_model_len=*/300);
  Handle(WorkerDown{.worker = 0, .reason = "lost"});
  Up(0, 100, 300);
  Handle(WorkerDown{.worker = 2, .reason = "lost"});
  Submit(1, Request(150, 51));
  Wait(milliseconds(1999));
  EXPECT_EQ(Ended(1), std::nullopt);
  Up(2, 102, 300);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Handle(WorkerDown{.worker = 2, .reason = "lost"});
  Submit(2, Request(150, 51));
  Wait(seconds(2));
  EXPECT_EQ(Ended(2), Code::kUnavailable);
  Submit(3, Request(150, 151));
  EXPECT_EQ(Ended(3), Code::kInvalidArgument);
}

TEST_F(DispatchTest, APairThatCameAndWentWhileAnotherWasServedIsWaitedForAnew) {
  Create({.max_pending_prefill_tokens = 1}, /*up=*/false);
  for (uint64_t key = 1; key <= 3; ++key) Submit(key, Request());
  Wait(seconds(1));
  Up(0, 100);
  Up(1, 101);
  EXPECT_EQ(outbox_.decodes.size(), 1u);  // The second has its turn without room, the third none.
  Wait(milliseconds(500));
  Handle(WorkerDown{.worker = 1, .reason = "lost"});
  Wait(milliseconds(1999));
  EXPECT_EQ(Ended(2), std::nullopt);
  EXPECT_EQ(Ended(3), std::nullopt);
  Wait(milliseconds(1));
  EXPECT_EQ(Ended(2), Code::kUnavailable);
  EXPECT_EQ(Ended(3), Code::kUnavailable);
}

TEST_F(DispatchTest, AWaitBeginsWithTheRequestHoweverLongNoPairWasThere) {
  Wait(seconds(1));
  Handle(WorkerDown{.worker = 0, .reason = "lost"});
  Wait(seconds(60));
  Submit(1, Request());
  Wait(milliseconds(1999));
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(milliseconds(1));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(DispatchTest, ARecoveryWaitsFromItsOwnLossNotFromAnEarlierOneOfTheOtherSide) {
  ToDecoding(1);
  Closed(prefill_call());
  Handle(WorkerDown{.worker = 0, .reason = "lost"});
  Wait(seconds(15));
  Tokens(decode_call(), 4, 51);
  Handle(WorkerDown{.worker = 1, .reason = "lost", .is_gone = true});
  Closed(decode_call(), absl::UnavailableError("lost"));
  Wait(milliseconds(9999));
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(milliseconds(1));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(DispatchTest, HalfAPairThatComesAndGoesDoesNotProlongTheWait) {
  Create({}, /*up=*/false);
  Submit(1, Request());
  for (int i = 0; i < 3; ++i) {
    Wait(milliseconds(500));
    Up(0, 100);
    Handle(WorkerDown{.worker = 0, .reason = "lost"});
  }
  Wait(milliseconds(500));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(DispatchTest, WaitsAWhileForAPairToComeAndThenSaysThatThereIsNone) {
  Create({}, /*up=*/false);
  Submit(1, Request());
  EXPECT_EQ(node_->NextDeadline(), now_ + seconds(2));
  Wait(seconds(1));
  EXPECT_EQ(Ended(1), std::nullopt);
  Up(0, 100);
  Up(1, 101);
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Handle(WorkerDown{.worker = 1, .reason = "lost"});
  Submit(2, Request());
  Wait(seconds(2));
  EXPECT_EQ(Ended(2), Code::kUnavailable);
  EXPECT_EQ(Ended(1), std::nullopt);  // Its call says what becomes of it.
}

TEST_F(DispatchTest, SpreadsOverTheDecodeWorkers) {
  Submit(1, Request());
  Submit(2, Request());
  EXPECT_EQ(outbox_.decodes[0].worker, 1);
  EXPECT_EQ(outbox_.decodes[1].worker, 2);
}

TEST_F(DispatchTest, GoesOnWhenThePrefillWorkerHasComputed) {
  OccupyPrefill();
  Submit(1, Request());
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Reserved(decode_call());
  Prefilled(prefill_call(), 3, 50);
  EXPECT_EQ(outbox_.decodes.size(), 2u);
}

TEST_F(DispatchTest, LowerPriorityNumbersGoFirstThenArrival) {
  OccupyPrefill();
  ValidRequest late = Request(), urgent = Request();
  late.prompts[0] = {1, 1, 1};
  late.priority = 5;
  urgent.prompts[0] = {3, 3, 3};
  urgent.priority = -1;
  Submit(1, late);
  Submit(2, Request());
  Submit(3, urgent);
  Handle(ClientCancel{100});
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decode_requests[1].tokens, urgent.prompts[0]);
  Handle(ClientCancel{3});
  EXPECT_EQ(outbox_.decode_requests[2].tokens, Request().prompts[0]);
}

TEST_F(DispatchTest, ALargePromptAtTheFrontIsNotOvertaken) {
  Create({.max_pending_prefill_tokens = 20});
  Submit(1, Request(15));
  Submit(2, Request(10));
  Submit(3, Request(2));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
}

// ---- Refusals of workers -----------------------------------------------------------------------

TEST_F(DispatchTest, ARefusedReservationIsTriedElsewhereAsANewAttempt) {
  Submit(1, Request());
  Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decodes[1].worker, 2);
  EXPECT_EQ(outbox_.decode_requests[1].attempt, 2u);
  EXPECT_EQ(outbox_.decode_requests[1].sequence, outbox_.decode_requests[0].sequence);
  EXPECT_EQ(node_->counters().requeued, 1);
}

TEST_F(DispatchTest, WhenAllHaveRefusedItWaitsForTheDelayOrTheNextStatus) {
  Submit(1, Request());
  Closed(decode_call(), absl::ResourceExhaustedError(""));
  Closed(decode_call(), absl::ResourceExhaustedError(""));
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(node_->NextDeadline(), now_ + milliseconds(20));
  Wait(milliseconds(19));
  EXPECT_EQ(outbox_.decodes.size(), 2u);
  Handle(WorkerStatusChanged{.worker = 2, .status = {.incarnation = 102}});
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(outbox_.decodes[2].worker, 2);
  Closed(decode_call(), absl::ResourceExhaustedError(""));
  Wait(milliseconds(1));
  EXPECT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_EQ(outbox_.decodes[3].worker, 1);
}

TEST_F(DispatchTest, ACallThatFoundAnotherProcessIsTriedAgain) {
  Submit(1, Request());
  Closed(decode_call(), absl::FailedPreconditionError("another incarnation"));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Reserved(decode_call(), 2);
  Closed(prefill_call(), absl::FailedPreconditionError("another incarnation"));
  Wait(milliseconds(20));
  EXPECT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(Ended(1), std::nullopt);
}

TEST_F(DispatchTest, ARevokedReservationLetsGoOfThePrefillAndStartsAgain) {
  ToPrefilling(1);
  const CallId prefill = prefill_call();
  Closed(decode_call(), absl::ResourceExhaustedError("revoked"));
  EXPECT_THAT(outbox_.cancelled, ElementsAre(prefill));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.prefill_requests.back().attempt, 2u);
  Prefilled(prefill, 3, 50, 1);  // Of the first attempt.
  EXPECT_TRUE(Seen(1).empty());
  Tokens(decode_call(), 3, 50, FinishReason::kNone, 2);
  EXPECT_THAT(Seen(1), ElementsAre(50));
}

TEST_F(DispatchTest, AnAttemptAfterTheFirstTokenDoesNotRepeatIt) {
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  Closed(decode_call(), absl::ResourceExhaustedError("revoked"));
  // What the client has seen is prefilled with the prompt.
  EXPECT_EQ(outbox_.decode_requests.back().tokens, (std::vector<int32_t>{7, 7, 7, 50}));
  EXPECT_EQ(outbox_.decode_requests.back().prompt_length, 3);
  Reserved(decode_call(), 2);
  Prefilled(prefill_call(), 4, 51, 2);
  Tokens(decode_call(), 4, 51, FinishReason::kNone, 2);
  Tokens(decode_call(), 5, 52, FinishReason::kStop, 2);
  EXPECT_THAT(Seen(1), ElementsAre(50, 51, 52));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(DispatchTest, ARefusedPrefillLetsGoOfTheReservationAndWaits) {
  ToPrefilling(1);
  const CallId decode = decode_call();
  Closed(prefill_call(), absl::ResourceExhaustedError("queue is full"));
  EXPECT_THAT(outbox_.cancelled, ElementsAre(decode));
  EXPECT_EQ(outbox_.decodes.size(), 1u);  // The only prefill worker is skipped.
  Wait(milliseconds(20));
  EXPECT_EQ(outbox_.decodes.size(), 2u);
}

TEST_F(DispatchTest, WhatASequenceCountedAgainstItsWorkersIsGivenBack) {
  Create({.max_pending_prefill_tokens = 1});
  for (uint64_t key = 1; key <= 6; ++key) {
    Submit(key, Request());
    ASSERT_EQ(outbox_.decodes.size(), key) << "the prefill worker looks busy";
    ASSERT_EQ(outbox_.decodes.back().worker, 1) << "the idle decode worker looks busy";
    if (key % 3 == 0) Handle(ClientCancel{key});
    if (key % 3 == 1) Closed(decode_call(), absl::InvalidArgumentError(""));
    if (key % 3 == 2) Tokens(decode_call(), 3, 50, FinishReason::kStop);
    EXPECT_NE(Ended(key), std::nullopt);
  }
}

// ---- Silence -----------------------------------------------------------------------------------

TEST_F(DispatchTest, ARequestFailsWhenNeitherItNorItsWorkersMove) {
  ToDecoding(1);
  Wait(milliseconds(29999));
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(milliseconds(1));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
  EXPECT_FALSE(outbox_.cancelled.empty());
}

TEST_F(DispatchTest, AWorkerThatComputesKeepsItsRequestsAlive) {
  ToDecoding(1);
  Wait(seconds(20));
  Handle(WorkerStatusChanged{.worker = 1, .status = {.incarnation = 101, .progress = 5}});
  Wait(seconds(20));
  Handle(WorkerStatusChanged{.worker = 1, .status = {.incarnation = 101, .progress = 5}});
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(seconds(10));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(DispatchTest, TheViewTellsWhoTookPartInATokenEndToEnd) {
  const auto last_token = [this](int32_t worker) {
    return node_->View().workers[worker].last_token;
  };
  now_ = Time(seconds(5));
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 3, 50);  // The prefill worker's own token again.
  EXPECT_EQ(last_token(0), Time{});
  EXPECT_EQ(last_token(1), Time{});
  now_ = Time(seconds(6));
  Tokens(decode_call(), 4, 51);
  EXPECT_EQ(last_token(0), now_);
  EXPECT_EQ(last_token(1), now_);
  now_ = Time(seconds(7));
  Tokens(decode_call(), 5, 52);
  EXPECT_EQ(last_token(0), Time(seconds(6)));
  EXPECT_EQ(last_token(1), now_);
  EXPECT_EQ(last_token(2), Time{});
  Up(1, 201);
  EXPECT_EQ(last_token(1), Time{}) << "another process";
  Tokens(decode_call(), 6, 53);
  EXPECT_EQ(last_token(1), Time{}) << "a late token of the process before";
}

TEST_F(DispatchTest, APromptThatTheDecodeWorkerComputedProvesNoPrefillWorker) {
  now_ = Time(seconds(5));
  ToPrefilling(1);
  Prefilled(prefill_call(), 3, 50);
  for (Attempt attempt = 1; attempt <= 3; ++attempt) {
    Handle(WorkerEventReceived{decode_call(), HandoffFailedEvent{.attempt = attempt}});
  }
  Tokens(decode_call(), 4, 51);
  EXPECT_EQ(node_->View().workers[0].last_token, Time{});
}

TEST_F(DispatchTest, TheViewTellsWhoIsHealthyAndHowMuchWaits) {
  OccupyPrefill();
  Submit(1, Request(5));
  Handle(WorkerStatusChanged{.worker = 1, .status = {.incarnation = 101, .draining = true}});
  Handle(WorkerDown{.worker = 2, .reason = "no heartbeat"});
  const RouterView view = node_->View();
  ASSERT_EQ(view.workers.size(), 3u);
  EXPECT_TRUE(view.workers[0].healthy);
  EXPECT_FALSE(view.workers[1].healthy);
  EXPECT_EQ(view.workers[1].reason, "draining");
  EXPECT_FALSE(view.workers[2].healthy);
  EXPECT_EQ(view.workers[2].reason, "no heartbeat");
  EXPECT_EQ(view.queued_requests, 1);
  EXPECT_EQ(view.queued_tokens, 5);
  EXPECT_EQ(view.running_requests, 1);
}

}  // namespace
}  // namespace baton
