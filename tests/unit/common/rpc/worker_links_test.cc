#include "common/rpc/worker_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// Over sessions, and with workers that serve none.
class WorkerLinksTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(, WorkerLinksTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "InSessions" : "CallByCall"; });

struct Worker : TestWorker {
  explicit Worker(Role role, bool serves_sessions, Incarnation incarnation = 7, bool full = false)
      : TestWorker(role, incarnation, 0, full, serves_sessions) {}
};

TEST_P(WorkerLinksTest, CarriesADecodeCallToItsEnd) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const DecodeRequest request = SampleDecode();
  router.links.OpenDecode(41, 0, request);
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->request.sequence, request.sequence);
  EXPECT_EQ(opened->request.tokens, request.tokens);

  WireSamples samples(2);
  const ReservedEvent reserved = samples.Reserved();
  worker.server.Emit(opened->call, reserved);
  for (int32_t p = 10; p < 13; ++p) {
    worker.server.Emit(opened->call, TokensEvent{.outputs = {{.position = p, .token = p}}});
  }
  worker.server.Close(opened->call, absl::OkStatus());
  worker.server.Close(opened->call, absl::InternalError("a second close is a no-op"));
  worker.server.Emit(opened->call, reserved);  // So is an event after it.

  const auto first = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->call, 41);
  EXPECT_EQ(std::get<ReservedEvent>(first->event).ticket, reserved.ticket);
  EXPECT_EQ(std::get<ReservedEvent>(first->event).pair_key, reserved.pair_key);
  for (int32_t p = 10; p < 13; ++p) {
    const auto tokens = router.inbox.Next<WorkerEventReceived>();
    ASSERT_TRUE(tokens.has_value());
    EXPECT_EQ(std::get<TokensEvent>(tokens->event).outputs.at(0).position, p);
  }
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 41);
  EXPECT_TRUE(closed->status.ok()) << closed->status;
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
  EXPECT_EQ(router.inbox.Count<WorkerEventReceived>(), 0);
}

TEST_P(WorkerLinksTest, WorkersComeAndGoAndTheirIndicesAreUsedAgain) {
  Worker first(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, first.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  auto second = std::make_unique<Worker>(Role::kDecode, GetParam(), 8);
  const std::string address = second->address();
  ASSERT_EQ(router.links.Add({Role::kDecode, address}), 1);
  const auto listed = router.inbox.Next<WorkerListed>();
  ASSERT_TRUE(listed.has_value());
  EXPECT_EQ(listed->worker, 1);
  EXPECT_EQ(listed->role, Role::kDecode);
  EXPECT_EQ(listed->address, address);
  const auto up = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->worker, 1);
  EXPECT_EQ(up->hello.incarnation, 8);

  // Whoever is connected stays, and whoever was after that time.
  EXPECT_FALSE(router.links.RemoveIfSilentSince(1, SteadyNow() + std::chrono::hours(1)));
  const Time connected = SteadyNow();
  DecodeRequest request = SampleDecode();
  request.worker = 8;
  router.links.OpenDecode(5, 1, request);
  ASSERT_TRUE(second->inbox.Next<DecodeOpened>().has_value());
  second.reset();
  ASSERT_TRUE(router.inbox.Next<WorkerDown>().has_value());
  EXPECT_FALSE(router.links.RemoveIfSilentSince(1, connected));
  EXPECT_TRUE(router.links.RemoveIfSilentSince(1, SteadyNow()));
  EXPECT_FALSE(router.links.RemoveIfSilentSince(1, SteadyNow()));
  const auto forgotten = router.inbox.Next<WorkerForgotten>(absl::Seconds(60));
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(forgotten->worker, 1);
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 1);  // It came before.
  router.links.OpenDecode(6, 1, request);
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 2);

  // Another role under the index, at another address.
  Worker third(Role::kPrefill, GetParam(), 9);
  ASSERT_EQ(router.links.Add({Role::kPrefill, third.address()}), 1);
  const auto again = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->worker, 1);
  EXPECT_EQ(again->hello.incarnation, 9);
  router.links.OpenDecode(7, 1, request);  // Of who had the index.
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 3);
  PrefillRequest prefill = SamplePrefill();
  prefill.worker = 9;
  router.links.OpenPrefill(8, 1, prefill);
  EXPECT_TRUE(third.inbox.Next<PrefillOpened>().has_value());
  EXPECT_TRUE(router.links.Add({Role::kPrefill, "127.0.0.1:1"}) == 2);
}

TEST_P(WorkerLinksTest, AnIndexIsFreeOnlyWhenItsWorkerWasLetGo) {
  FakeInbox<RouterMail> inbox;
  WorkerLinks links({.workers = {{Role::kDecode, "127.0.0.1:1"}}, .max_workers = 2}, &inbox);
  links.Start();
  ASSERT_EQ(links.Add({Role::kDecode, "127.0.0.1:2"}), 1);
  EXPECT_FALSE(links.Add({Role::kDecode, "127.0.0.1:3"}).has_value());
  EXPECT_TRUE(links.RemoveIfSilentSince(0, SteadyNow()));
  const auto forgotten = inbox.Next<WorkerForgotten>(absl::Seconds(60));
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(forgotten->worker, 0);
  EXPECT_EQ(links.Add({Role::kDecode, "127.0.0.1:3"}), 0);
  links.Stop();
  EXPECT_FALSE(links.RemoveIfSilentSince(0, SteadyNow()));
  EXPECT_FALSE(links.Add({Role::kDecode, "127.0.0.1:4"}).has_value());
}

TEST_P(WorkerLinksTest, CarriesAPrefillCallAndTheWorkersError) {
  Worker worker(Role::kPrefill, GetParam());
  TestRouter router({{Role::kPrefill, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenPrefill(5, 0, SamplePrefill());
  const auto opened = worker.inbox.Next<PrefillOpened>();
  ASSERT_TRUE(opened.has_value());
  worker.server.Emit(opened->call, PrefilledEvent{.first = TokenOutput{.position = 3, .token = 4}});
  worker.server.Close(opened->call, absl::AbortedError("the handoff failed: no answer"));
  const auto event = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<PrefilledEvent>(event->event).first->token, 4);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status, absl::AbortedError("the handoff failed: no answer"));
}

TEST_P(WorkerLinksTest, AScoreMayBeAsLongAsWasAskedForAndNoLonger) {
  Worker worker(Role::kPrefill, GetParam());
  TestRouter router({{Role::kPrefill, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  PrefillRequest request = SamplePrefill();
  request.tokens.assign(400, 5);
  request.prompt_length = 400;
  request.sampling.num_prompt_logprobs = 2;
  router.links.OpenPrefill(5, 0, request);
  const auto opened = worker.inbox.Next<PrefillOpened>();
  ASSERT_TRUE(opened.has_value());
  const auto send = [&](int32_t position, int32_t num_top) {
    const std::vector<TokenLogprob> top(num_top, {.token = 7, .logprob = -1});
    worker.server.Emit(opened->call,
                       ScoresEvent{.logprobs = {{.position = position, .rank = 1, .top = top}}});
  };
  for (int32_t p = 1; p < 400; ++p) {  // At worst each in a piece of its own.
    send(p, 2);
    const auto event = router.inbox.Next<WorkerEventReceived>();
    ASSERT_TRUE(event.has_value()) << p;
    EXPECT_EQ(std::get<ScoresEvent>(event->event).logprobs.at(0).position, p);
  }
  for (int32_t i = 0; i < 40; ++i) send(1, 2);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kDataLoss);
  EXPECT_LT(router.inbox.Count<WorkerEventReceived>(), 40);
}

TEST_P(WorkerLinksTest, CancelBreaksTheCallOnTheWorkerOnceAndLaterEventsAreNoOps) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  router.links.Cancel(1);
  router.links.Cancel(1);
  router.links.Cancel(12345);
  const auto broken = worker.inbox.Next<CallBroken>();
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->call, opened->call);
  worker.server.Emit(opened->call, WireSamples(3).Reserved());
  worker.server.Close(opened->call, absl::OkStatus());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kCancelled);
  router.links.Stop();
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 0);
}

TEST_P(WorkerLinksTest, TheRequestsTimeoutBreaksTheCallOnBothSides) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  request.timeout = std::chrono::milliseconds(100);
  router.links.OpenDecode(1, 0, request);
  ASSERT_TRUE(worker.inbox.Next<CallBroken>().has_value());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(WorkerLinksTest, LosingTheRouterBreaksItsCalls) {
  Worker worker(Role::kDecode, GetParam());
  {
    TestRouter router({{Role::kDecode, worker.address()}});
    ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
    router.links.OpenDecode(1, 0, SampleDecode());
    router.links.OpenDecode(2, 0, SampleDecode());
    ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
    ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  }
  EXPECT_TRUE(worker.inbox.Next<CallBroken>().has_value());
  EXPECT_TRUE(worker.inbox.Next<CallBroken>().has_value());
}

TEST_P(WorkerLinksTest, AfterTheStopThereIsNoMail) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  router.links.Stop();
  router.links.Stop();
  router.links.OpenDecode(2, 0, SampleDecode());
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 0);
  EXPECT_EQ(router.inbox.Count<WorkerDown>(), 0);
  EXPECT_TRUE(worker.inbox.Next<CallBroken>().has_value());
}

TEST_P(WorkerLinksTest, AFullInboxIsRefusedAtOnce) {
  Worker worker(Role::kDecode, GetParam(), 7, /*full=*/true);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(closed->status.message()), HasSubstr("inbox is full"));
  EXPECT_EQ(worker.inbox.Count<CallBroken>(), 0);
}

TEST_P(WorkerLinksTest, ABadRequestIsRefusedByFieldAndNeverReachesTheNode) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  request.tokens[0] = kLimits.vocab_size;
  router.links.OpenDecode(1, 0, request);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(closed->status.message()), HasSubstr("tokens[0] = 1000"));
  EXPECT_EQ(worker.inbox.Count<DecodeOpened>(), 0);
}

TEST_P(WorkerLinksTest, ACallToAWorkerThatIsNotConnectedEndsAtOnce) {
  TestRouter router({{Role::kDecode, "127.0.0.1:1"}});
  router.links.OpenDecode(9, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 9);
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kUnavailable);
}

TEST_P(WorkerLinksTest, AWorkerThatStreamsMoreThanWasAskedIsCutOff) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());  // max_tokens 8
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  for (int i = 0; i < 100; ++i) {
    worker.server.Emit(opened->call, TokensEvent{.outputs = {{.position = i + 1, .token = 1}}});
  }
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.code(), absl::StatusCode::kDataLoss);
  EXPECT_LT(router.inbox.Count<WorkerEventReceived>(), 20);
}

TEST_P(WorkerLinksTest, ACallMeantForAProcessThatIsNotThereAnyMoreIsRefusedHere) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  request.worker = 8;
  router.links.OpenDecode(3, 0, request);
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(closed->status)) << closed->status;
  EXPECT_EQ(worker.inbox.Count<DecodeOpened>(), 0);
}

TEST_P(WorkerLinksTest, ARebindReachesTheNodeOfItsCallsWorker) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(3, 0, SampleDecode());
  const auto opened = worker.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(opened.has_value());
  const RebindRequest request{.sequence = opened->request.sequence, .attempt = 2, .prefill = 55};
  router.links.Rebind(3, request);
  router.links.Rebind(4, request);  // No such call.
  const auto asked = worker.inbox.Next<RebindAsked>();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->request.sequence, request.sequence);
  EXPECT_EQ(asked->request.attempt, 2u);
  EXPECT_EQ(asked->request.prefill, 55u);
  worker.server.Emit(opened->call, HandoffFailedEvent{.attempt = 2, .reason = "link cut"});
  const auto event = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<HandoffFailedEvent>(event->event).reason, "link cut");
  EXPECT_EQ(router.inbox.Count<CallClosed>(), 0);
  EXPECT_EQ(worker.inbox.Count<RebindAsked>(), 0);
}

TEST_P(WorkerLinksTest, ASendReachesTheNodeOfItsCallsWorker) {
  Worker worker(Role::kPrefill, GetParam());
  TestRouter router({{Role::kPrefill, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenPrefill(3, 0, SamplePrefill());
  const auto opened = worker.inbox.Next<PrefillOpened>();
  ASSERT_TRUE(opened.has_value());
  SendRequest request = WireSamples(1).Send();
  request.sequence = opened->request.sequence;
  router.links.Send(3, request);
  const auto asked = worker.inbox.Next<SendAsked>();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->request.handoff.ticket, request.handoff.ticket);
  worker.server.Emit(opened->call, HandoffFailedEvent{.attempt = 2, .reason = "link cut"});
  const auto event = router.inbox.Next<WorkerEventReceived>();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<HandoffFailedEvent>(event->event).attempt, 2u);
}

TEST_P(WorkerLinksTest, ACallWhoseWorkerCannotBeToldIsLost) {
  Worker worker(Role::kDecode, GetParam());
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(3, 0, SampleDecode());
  ASSERT_TRUE(worker.inbox.Next<DecodeOpened>().has_value());
  router.links.Rebind(3, {.sequence = {}, .attempt = 2, .prefill = 55});  // The worker refuses it.
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->call, 3u);
  EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
  EXPECT_TRUE(worker.inbox.Next<CallBroken>().has_value());
}

}  // namespace
}  // namespace baton
