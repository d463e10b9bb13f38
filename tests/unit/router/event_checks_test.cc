// What workers tell the router, out of the range that follows from what was asked: the call that
// told it is lost, the request goes on elsewhere, and the client sees nothing of it.
#include "router/event_checks.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Code = absl::StatusCode;

template <typename Event>
struct Row {
  const char* named;
  std::function<void(Event*)> spoil;
};

constexpr int32_t kLength = 3;  // Of prompts.

// The structured bindings do not compile when a field is added: give it rows, or the reason why it
// needs none. Attempts and tickets are names; endpoint and key are the prefill worker's to try, and
// a wrong one is a failed handoff.
std::vector<Row<ReservedEvent>> ReservedRows() {
  [[maybe_unused]] const auto& [attempt, ticket, endpoint, key, decode, cached] = ReservedEvent();
  return {
      {"reserved.decode_incarnation", [](auto* e) { e->decode += 1; }},
      {"reserved.decode_incarnation", [](auto* e) { e->decode = 0; }},
      {"reserved.cached_tokens is 3", [](auto* e) { e->cached_tokens = kLength; }},
      {"reserved.cached_tokens is 4", [](auto* e) { e->cached_tokens = kLength + 1; }},
      {"reserved.cached_tokens is -1", [](auto* e) { e->cached_tokens = -1; }},
      {"reserved.cached_tokens is 2147483647", [](auto* e) { e->cached_tokens = INT32_MAX; }},
  };
}

// Of the first or any other token of an answer of at most 4; two alternatives are asked for, and 60
// ends the answer. Token ids and log probabilities are judged by the conversion.
std::vector<Row<TokenOutput>> OutputRows() {
  [[maybe_unused]] const auto& [position, token, logprob, top, digest, finish] = TokenOutput();
  return {
      {"skipped", [](auto* o) { o->position += 1; }},
      {"skipped", [](auto* o) { o->position = INT32_MAX; }},
      {"output.finish is 2", [](auto* o) { o->finish = FinishReason::kLength; }},
      {"output.finish is 0", [](auto* o) { o->token = 60; }},
      {"output.top has 3", [](auto* o) { o->top.resize(3); }},
  };
}

class EventChecksTest : public RecoveryHarness {
 protected:
  static ValidRequest Asked(int32_t max_tokens = 4) {
    ValidRequest request = Request(kLength, max_tokens);
    request.sampling.num_logprobs = 2;
    request.sampling.stop_token_ids = {60};
    return request;
  }
  // The call that told a bad value is lost, and a healthy worker's failure is tried again.
  void ExpectLost(CallId call, uint64_t key) {
    EXPECT_THAT(outbox_.cancelled, Contains(call));
    EXPECT_EQ(Ended(key), std::nullopt);
    const auto retries = node_->counters().retries;
    now_ += std::chrono::milliseconds(1);
    for (int32_t worker : {0, 1, 2, 3}) Heard(worker);
    Judged();
    EXPECT_EQ(node_->counters().retries, retries + 1);
    Handle(ClientCancel{key});
    EXPECT_TRUE(node_->idle());
  }
  uint64_t next_key_ = 0;
};

TEST_F(EventChecksTest, ABadReservationIsALossOfTheDecodeWorker) {
  for (const auto& row : ReservedRows()) {
    SCOPED_TRACE(row.named);
    Submit(++next_key_, Asked());
    const CallId call = decode_call();
    ReservedEvent event{
        .attempt = 1, .ticket = {8, call}, .ranks = {{"d:1", {0, 4}}}, .decode = DecodeOf(call)};
    EXPECT_TRUE(CheckReserved(event, DecodeOf(call), kLength).ok());
    row.spoil(&event);
    EXPECT_THAT(std::string(CheckReserved(event, DecodeOf(call), kLength).message()),
                HasSubstr(row.named));
    const size_t prefills = outbox_.prefills.size();
    Handle(WorkerEventReceived{call, event});
    EXPECT_EQ(outbox_.prefills.size(), prefills);
    ExpectLost(call, next_key_);
  }
}

TEST_F(EventChecksTest, ABadCachedCountIsALossOfThePrefillWorker) {
  for (int32_t cached : {-1, kLength, INT32_MAX}) {
    SCOPED_TRACE(cached);
    ToPrefilling(++next_key_, Asked());
    const CallId call = prefill_call();
    const PrefilledEvent event{.attempt = 1,
                               .first = TokenOutput{.position = kLength, .token = 50},
                               .cached_tokens = cached};
    EXPECT_THAT(std::string(CheckCached("prefilled", cached, kLength).message()),
                HasSubstr("prefilled.cached_tokens is"));
    Handle(WorkerEventReceived{call, event});
    EXPECT_THAT(Seen(next_key_), IsEmpty());
    ExpectLost(call, next_key_);
  }
}

TEST_F(EventChecksTest, ABadCachedCountIsALossOfTheDecodeWorker) {
  for (int32_t cached : {-1, kLength, INT32_MAX}) {
    SCOPED_TRACE(cached);
    ToPrefilling(++next_key_, Asked());
    const CallId call = decode_call();
    EXPECT_EQ(CheckCached("tokens", cached, kLength).code(), Code::kDataLoss);
    Handle(WorkerEventReceived{
        call, TokensEvent{.attempt = 1,
                          .outputs = {{.position = kLength, .token = 50}},
                          .cached_tokens = cached}});
    EXPECT_THAT(Seen(next_key_), IsEmpty());
    ExpectLost(call, next_key_);
  }
}

TEST_F(EventChecksTest, ABadFirstTokenIsALossOfThePrefillWorker) {
  for (const auto& row : OutputRows()) {
    SCOPED_TRACE(row.named);
    ToPrefilling(++next_key_, Asked());
    const CallId call = prefill_call();
    TokenOutput first{.position = kLength, .token = 50};
    row.spoil(&first);
    Handle(WorkerEventReceived{call, PrefilledEvent{.attempt = 1, .first = first}});
    EXPECT_THAT(Seen(next_key_), IsEmpty());
    ExpectLost(call, next_key_);
  }
}

TEST_F(EventChecksTest, AMissingFirstTokenIsALossOfThePrefillWorker) {
  ToPrefilling(++next_key_, Asked());
  const CallId call = prefill_call();
  Handle(WorkerEventReceived{call, PrefilledEvent{.attempt = 1}});
  EXPECT_THAT(Seen(next_key_), IsEmpty());
  ExpectLost(call, next_key_);
}

TEST_F(EventChecksTest, ABadTokenIsALossOfTheDecodeWorkerAndThoseBeforeItStand) {
  for (const auto& row : OutputRows()) {
    SCOPED_TRACE(row.named);
    ToDecoding(++next_key_, Asked());
    Closed(prefill_call());
    const CallId call = decode_call();
    TokenOutput bad{.position = kLength + 2, .token = 52};
    row.spoil(&bad);
    Handle(WorkerEventReceived{
        call,
        TokensEvent{.attempt = 1, .outputs = {{.position = kLength + 1, .token = 51}, bad}}});
    EXPECT_THAT(Seen(next_key_), ElementsAre(50, 51));
    ExpectLost(call, next_key_);
  }
}

TEST_F(EventChecksTest, AnAnswerIsNeverLongerThanAsked) {
  ToDecoding(1, Asked(2));
  Closed(prefill_call());
  const CallId call = decode_call();
  Tokens(call, kLength + 1, 51);  // The last one, and does not say so.
  EXPECT_THAT(Seen(1), ElementsAre(50));
  ExpectLost(call, 1);
}

TEST_F(EventChecksTest, WhatTheClientHasAlreadyIsNotLookedAt) {
  ToDecoding(1, Asked());
  Tokens(decode_call(), kLength, 50, FinishReason::kLength);  // Repeated, and wrong now.
  EXPECT_EQ(node_->counters().stale_tokens, 2);
  EXPECT_THAT(outbox_.cancelled, IsEmpty());
}

TEST_F(EventChecksTest, AllButTheLastTokenMayBeCached) {
  EXPECT_TRUE(CheckCached("tokens", 9, 10).ok());
  EXPECT_FALSE(CheckCached("tokens", 9, 9).ok());
}

}  // namespace
}  // namespace baton
