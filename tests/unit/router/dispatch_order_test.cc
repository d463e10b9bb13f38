// Whose turn it is when workers do not take all: the part of RouterNode in dispatch.cc.
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
using Code = absl::StatusCode;

class DispatchOrderTest : public RouterHarness {};

// ---- Between tenants ---------------------------------------------------------------------------

TEST_F(DispatchOrderTest, TheTenantThatWasServedLeastGoesFirst) {
  Create({.max_pending_prefill_tokens = 1});
  Submit(100, Request());  // The prefill worker is kept busy by it.
  const auto of = [](const std::string& tenant, int32_t mark) {
    ValidRequest request = Request(5);
    request.tenant = tenant;
    request.prompts[0][0] = mark;
    return request;
  };
  for (int i = 0; i < 3; ++i) Submit(1 + i, of("a", 1));
  for (int i = 0; i < 2; ++i) Submit(11 + i, of("b", 2));
  // Each ends when it has been given to workers.
  std::vector<int32_t> order;
  for (const uint64_t key : {100, 1, 11, 2, 12, 3}) {
    Handle(ClientCancel{key});
    order.push_back(outbox_.decode_requests.back().tokens[0]);
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 1, 2, 1, 1));
}

TEST_F(DispatchOrderTest, TokensOfAnswersAreChargedTwiceThoseOfPrompts) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ValidRequest request = Request(3, 9);
  request.tenant = "a";
  ToDecoding(1, request);  // 3 - 2 cached, and one token: 1 + 2.
  Handle(WorkerDown{.worker = 0, .reason = "lost"});
  for (int i = 0; i < 2; ++i) {
    request.tenant = i == 0 ? "a" : "b";
    request.prompts[0][0] = 20 + i;
    Submit(2 + i, request);
  }
  Tokens(decode_call(), 4, 51);
  Up(0, 200);
  ASSERT_EQ(outbox_.decode_requests.size(), 3u);
  EXPECT_EQ(outbox_.decode_requests[1].tokens[0], 21) << "b came level with a, then a was given 1";
}

TEST_F(DispatchOrderTest, ARefusalByAWorkerCostsTheTenantNothing) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  ValidRequest request = Request(30);
  for (int i = 0; i < 3; ++i) {
    request.tenant = i < 2 ? "a" : "b";
    request.prompts[0][0] = i;
    Submit(1 + i, request);
    if (i == 0) Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  }
  Wait(milliseconds(20));
  Reserved(decode_call(), 2);
  std::vector<int32_t> order;
  for (const DecodeRequest& asked : outbox_.decode_requests) order.push_back(asked.tokens[0]);
  EXPECT_THAT(order, ElementsAre(0, 0, 2, 1)) << "b comes level with a, which then has its turn";
}

TEST_F(DispatchOrderTest, AFullQueueGivesUpTheNewestOfWhoFillsIt) {
  Create({.max_queued_requests = 3, .max_pending_prefill_tokens = 1});
  ValidRequest request = Request();
  request.tenant = "flood";
  for (uint64_t key = 1; key <= 4; ++key) Submit(key, request);  // The first runs.
  Submit(5, request);
  EXPECT_EQ(Ended(5), Code::kResourceExhausted);
  request.tenant = "other";
  Submit(6, request);
  EXPECT_EQ(Ended(6), std::nullopt);
  EXPECT_EQ(Ended(4), Code::kResourceExhausted);
  EXPECT_EQ(Ended(3), std::nullopt);
  EXPECT_EQ(node_->counters().evicted, 1);
  EXPECT_EQ(node_->View().queued_requests, 3);
  EXPECT_EQ(node_->View().live_tenants, 2);
}

TEST_F(DispatchOrderTest, WhoWouldWaitForTooLongIsRefusedAndWhatRunsIsNot) {
  Create({.max_pending_prefill_tokens = 1});
  // The prefill worker takes a request of three tokens each second.
  for (uint64_t key = 1; key <= 40; ++key) Submit(key, Request(3, 1));
  EXPECT_EQ(node_->counters().shed, 0) << "nothing is known of the rate";
  for (uint64_t key = 1; key <= 20; ++key) {
    Wait(seconds(1));
    Prefilled(prefill_call(), 3, 50);
  }
  Submit(41, Request(3, 1));
  ASSERT_EQ(Ended(41), Code::kResourceExhausted);
  const int64_t after = RetryAfter(outbox_.clients[41].ended[0].status);
  EXPECT_GE(after, 8) << "19 wait, and 10 may";
  EXPECT_LE(after, 10);
  EXPECT_EQ(node_->counters().shed, 1);
  EXPECT_EQ(node_->counters().refused, 1);
  ValidRequest other = Request(3, 1);
  other.tenant = "other";
  Submit(42, other);
  EXPECT_EQ(Ended(42), std::nullopt) << "its turn comes soon";
}

// ---- Blocked heads -----------------------------------------------------------------------------

TEST_F(DispatchOrderTest, WhoLacksADecodeWorkerLetsThoseGoThatNeedNone) {
  Submit(1, Request());
  for (int i = 0; i < 2; ++i) Closed(decode_call(), absl::ResourceExhaustedError(""));
  ASSERT_EQ(outbox_.decodes.size(), 2u) << "both are not asked again for a moment";
  ValidRequest scores = Request();
  scores.score_only = true;
  scores.sampling.num_prompt_logprobs = 1;
  Submit(2, scores);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_EQ(outbox_.decodes.size(), 2u);
}

TEST_F(DispatchOrderTest, WhoLacksAPrefillWorkerIsNotOvertakenByThoseThatNeedNothingElse) {
  Create({.max_pending_prefill_tokens = 20});
  Submit(1, Request(15));
  Submit(2, Request(10));
  ValidRequest scores = Request(2);
  scores.score_only = true;
  scores.sampling.num_prompt_logprobs = 1;
  Submit(3, scores);
  EXPECT_EQ(outbox_.prefills.size(), 0u);
}

TEST_F(DispatchOrderTest, AWorkerWithoutRoomIsKeptForTheOneItRefused) {
  Create({}, true, {Role::kPrefill, Role::kDecode});
  Submit(1, Request(100));
  Submit(2, Request(3));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  const CallId large = outbox_.decodes[0].call, small = outbox_.decodes[1].call;
  Closed(large, absl::ResourceExhaustedError("no blocks are free"));
  Submit(3, Request(3));
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 3u) << "the large one asks again, the third does not";
  EXPECT_EQ(outbox_.decode_requests[2].tokens.size(), 100u);
  Handle(ClientCancel{2});
  EXPECT_NE(small, large);
  Reserved(decode_call(), 2);
  EXPECT_EQ(outbox_.decodes.size(), 4u) << "it has its room";
}

TEST_F(DispatchOrderTest, WhoIsKeptOutByAClaimIsWokenWhenItEnds) {
  Submit(1, Request(100));
  ASSERT_EQ(outbox_.decodes.back().worker, 1);
  Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  ASSERT_EQ(outbox_.decodes.back().worker, 2) << "the large one waits for its answer there";
  Handle(WorkerStatusChanged{.worker = 2, .status = {.incarnation = 102, .draining = true}});
  Submit(2, Request());
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(node_->NextDeadline(), now_ - milliseconds(20) + seconds(1));
  Wait(milliseconds(980));
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
}

TEST_F(DispatchOrderTest, AClaimGoesWithWhoMadeIt) {
  Create({.retry_delay = seconds(5)}, true, {Role::kPrefill, Role::kDecode});
  Submit(1, Request(100));
  Closed(decode_call(), absl::ResourceExhaustedError("no blocks are free"));
  Submit(2, Request(3));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
  Handle(ClientCancel{1});
  Handle(WorkerStatusChanged{.worker = 1, .status = {.incarnation = 101}});
  EXPECT_EQ(outbox_.decodes.size(), 2u) << "who claimed it is gone";
}

}  // namespace
}  // namespace baton
