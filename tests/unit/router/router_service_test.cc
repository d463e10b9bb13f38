#include "router/router_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/unit/common/rpc/test_cluster.h"
#include "tests/unit/router/router_service_fixture.h"

namespace baton {
namespace {

// Keeps the node's thread until the test lets it go.
class BlockingSink : public ResponseSink {
 public:
  void OnEvent(ClientEvent) override { release.WaitForNotification(); }
  absl::Notification release;
};

TEST(RouterServiceTest, IsNotAliveWhileATurnOfItsNodeDoesNotEnd) {
  RouterService service(
      {.node = {.incarnation = 9},
       .workers = {{Role::kPrefill, "127.0.0.1:1"}, {Role::kDecode, "127.0.0.1:2"}},
       .most_turn = std::chrono::milliseconds(50)},
      Policy());
  service.Start({});
  const auto sink = std::make_shared<BlockingSink>();
  ValidRequest request = Request();
  request.timeout = std::chrono::milliseconds(1);
  ASSERT_TRUE(service.Submit(std::move(request), sink).ok());
  while (service.Alive()) {
  }
  EXPECT_EQ(service.View().workers.size(), 2u);  // Nobody who asks waits for the node.
  EXPECT_FALSE(service.Alive());
  sink->release.Notify();
  while (!service.Alive()) {
  }
  service.Stop();
}

TEST(RouterServiceTest, WhoFillsTheQueueIsRefusedBeforeItsNextRequestUntilOneHasGone) {
  RouterService service(
      {.node = {.max_queued_requests = 1},
       .workers = {{Role::kPrefill, "127.0.0.1:1"}, {Role::kDecode, "127.0.0.1:2"}}},
      Policy());
  service.Start({});
  EXPECT_TRUE(service.CheckRoom("").ok());
  const auto sink = std::make_shared<NotingSink>();
  const auto request = service.Submit(Request(), sink);
  ASSERT_TRUE(request.ok());
  while (service.CheckRoom("").ok()) {
  }
  EXPECT_TRUE(service.CheckRoom("another").ok());
  service.Cancel(*request);
  while (!service.CheckRoom("").ok()) {
  }
  service.Stop();
}

TEST(RouterServiceTest, IsNotReadyWhileItsNodeStandsStillWhateverWasProven) {
  TestWorker prefill(Role::kPrefill, 7);
  TestWorker decode(Role::kDecode, 8);
  RouterService service(
      {.node = {.incarnation = 99},
       .workers = {{Role::kPrefill, prefill.address()}, {Role::kDecode, decode.address()}},
       .most_turn = std::chrono::seconds(1)},
      Policy());
  absl::Notification ready;
  service.Start({.on_ready = [&ready](bool now) {
    if (now) ready.Notify();
  }});
  ServeOne(&prefill, &decode);
  ASSERT_TRUE(ready.WaitForNotificationWithTimeout(absl::Seconds(60)));
  const auto sink = std::make_shared<BlockingSink>();
  ValidRequest request = Request();
  request.timeout = std::chrono::milliseconds(1);
  ASSERT_TRUE(service.Submit(std::move(request), sink).ok());
  const Time give_up = SteadyNow() + std::chrono::seconds(20);
  while (service.Alive() && SteadyNow() < give_up) {
  }
  EXPECT_FALSE(service.Ready());
  sink->release.Notify();
  service.Stop();
}

TEST(RouterServiceTest, ProbesThenServesARequestThroughAPair) {
  TestWorker prefill(Role::kPrefill, 7);
  TestWorker decode(Role::kDecode, 8);
  RouterService service(
      {.node = {.incarnation = 99},
       .workers = {{Role::kPrefill, prefill.address()}, {Role::kDecode, decode.address()}}},
      Policy());
  absl::Notification ready;
  service.Start({.on_ready = [&ready](bool now) {
    if (now) ready.Notify();
  }});
  EXPECT_FALSE(service.Ready());
  ServeOne(&prefill, &decode);  // The readiness probe.
  ASSERT_TRUE(ready.WaitForNotificationWithTimeout(absl::Seconds(10)));

  auto sink = std::make_shared<NotingSink>();
  ASSERT_TRUE(service.Submit(Request(), sink).ok());
  ServeOne(&prefill, &decode);
  ASSERT_TRUE(sink->ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(sink->tokens, (std::vector<int32_t>{11, 12}));
  const RouterView view = service.View();
  ASSERT_EQ(view.workers.size(), 2u);
  EXPECT_EQ(view.workers[0].address, prefill.address());
  EXPECT_TRUE(view.workers[1].healthy);
  service.BeginDrain();
  EXPECT_FALSE(service.Ready());
}

TEST(RouterServiceTest, ServesByWorkersThatCameLaterAndNoLongerShowsThoseThatLeft) {
  auto prefill = std::make_unique<TestWorker>(Role::kPrefill, 7);
  TestWorker decode(Role::kDecode, 8);
  RouterService service(
      {.node = {.incarnation = 99}, .workers = {{Role::kDecode, decode.address()}}}, Policy());
  service.Start({});
  ASSERT_EQ(service.workers()->Add({Role::kPrefill, prefill->address()}), 1);
  ServeOne(prefill.get(), &decode);  // The readiness probe.
  auto sink = std::make_shared<NotingSink>();
  ASSERT_TRUE(service.Submit(Request(), sink).ok());
  ServeOne(prefill.get(), &decode);
  ASSERT_TRUE(sink->ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_TRUE(sink->status.ok()) << sink->status;
  EXPECT_EQ(service.View().workers.at(1).address, prefill->address());

  prefill.reset();
  while (!service.workers()->RemoveIfSilentSince(1, SteadyNow())) std::this_thread::yield();
  while (service.View().workers.size() != 1) std::this_thread::yield();
  EXPECT_EQ(service.counters().workers_forgotten, 1);
  TestWorker next(Role::kPrefill, 9);
  ASSERT_EQ(service.workers()->Add({Role::kPrefill, next.address()}), 1);
  ServeOne(&next, &decode);  // Another probe: nobody is left of who proved the last.
}

// What is said of workers within 50 ms is shown together; then the node sleeps.
TEST(RouterServiceTest, ShowsTheLastThatItHasHeardOfWorkers) {
  RouterService service({.node = {.incarnation = 99}, .workers = {}}, Policy());
  service.Start({});
  constexpr size_t kWorkers = 16;
  for (size_t i = 0; i < kWorkers; ++i) {
    ASSERT_TRUE(service.workers()->Add({Role::kPrefill, "127.0.0.1:1"}).has_value());
  }
  const auto is_shown = [&] {
    const RouterView view = service.View();
    return view.workers.size() == kWorkers && std::ranges::all_of(view.workers, [](const auto& w) {
             return w.reason == "no worker answers";
           });
  };
  const Time give_up = SteadyNow() + std::chrono::seconds(30);
  while (!is_shown() && SteadyNow() < give_up) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(is_shown());
}

TEST(RouterServiceTest, CancelReachesBothWorkersAndEndsTheRequestOnce) {
  TestWorker prefill(Role::kPrefill, 7);
  TestWorker decode(Role::kDecode, 8);
  RouterService service(
      {.node = {.incarnation = 99},
       .workers = {{Role::kPrefill, prefill.address()}, {Role::kDecode, decode.address()}}},
      Policy());
  absl::Notification ready;
  service.Start({.on_ready = [&ready](bool now) {
    if (now) ready.Notify();
  }});
  ServeOne(&prefill, &decode);
  ASSERT_TRUE(ready.WaitForNotificationWithTimeout(absl::Seconds(10)));
  auto sink = std::make_shared<NotingSink>();
  const auto key = service.Submit(Request(), sink);
  ASSERT_TRUE(key.ok());
  const auto call = decode.inbox.Next<DecodeOpened>();
  ASSERT_TRUE(call.has_value());
  service.Cancel(*key);
  service.Cancel(*key);
  auto broken = decode.inbox.Next<CallBroken>();
  // The probe's call may have been let go of before the worker closed it.
  if (broken && broken->call < call->call) broken = decode.inbox.Next<CallBroken>();
  ASSERT_TRUE(broken.has_value());
  EXPECT_EQ(broken->call, call->call);
  ASSERT_TRUE(sink->ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(sink->status.code(), absl::StatusCode::kCancelled);
  service.Stop();
  EXPECT_EQ(sink->num_ends, 1);
}

TEST(RouterServiceTest, StopEndsWhatWaitsAndRefusesWhatComes) {
  RouterService service(
      {.node = {.incarnation = 99},
       .workers = {{Role::kPrefill, "127.0.0.1:1"}, {Role::kDecode, "127.0.0.1:2"}}},
      Policy());
  service.Start({});
  auto sink = std::make_shared<NotingSink>();
  ASSERT_TRUE(service.Submit(Request(), sink).ok());
  service.Stop();
  EXPECT_EQ(sink->num_ends, 1);
  EXPECT_EQ(sink->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service.Submit(Request(), std::make_shared<NotingSink>()).status().code(),
            absl::StatusCode::kUnavailable);
}

// Whoever submits while the service stops hears of its request once: from Submit or by the sink.
TEST(RouterServiceTest, ASubmitThatRacesStopIsToldOnce) {
  constexpr int kRounds = 40;
  constexpr int kThreads = 3;
  for (int round = 0; round < kRounds; ++round) {
    RouterService service({.node = {.incarnation = 99},
                           .workers = {{Role::kPrefill, "127.0.0.1:1"}},
                           .max_offered_requests = 1},
                          Policy());
    struct Told {
      std::shared_ptr<NotingSink> sink;
      bool taken = false;
    };
    std::vector<Told> told[kThreads];
    std::atomic<int> num_running = 0;
    const auto submit_until_stopped = [&](std::vector<Told>* all) {
      ++num_running;
      for (absl::Status status; !absl::IsUnavailable(status);) {
        auto sink = std::make_shared<NotingSink>();
        status = service.Submit(Request(), sink).status();
        all->push_back({std::move(sink), status.ok()});
      }
    };
    {
      std::vector<std::jthread> threads;
      for (auto& all : told) threads.emplace_back(submit_until_stopped, &all);
      while (num_running < kThreads) std::this_thread::yield();
      service.Stop();
    }
    for (const auto& all : told) {
      for (const Told& one : all) {
        ASSERT_EQ(one.sink->num_ends, one.taken ? 1 : 0) << "round " << round;
      }
    }
  }
}

TEST(RouterServiceTest, AnAuditIsTheNodesAnswerOrAnErrorInTime) {
  RouterService service({.node = {.incarnation = 99},
                         .workers = {{Role::kPrefill, "127.0.0.1:1"}},
                         .max_offered_requests = 1},
                        Policy());
  EXPECT_TRUE(absl::IsDeadlineExceeded(service.Audit().status()));   // Not started: nobody answers.
  EXPECT_TRUE(absl::IsResourceExhausted(service.Audit().status()));  // And it still waits.
  service.Start({});
  absl::StatusOr<RouterAudit> audit;
  do {
    audit = service.Audit();
  } while (absl::IsResourceExhausted(audit.status()));
  ASSERT_TRUE(audit.ok()) << audit.status();
  EXPECT_EQ(audit->incarnation, 99u);
}

TEST(RouterServiceTest, LogsAWorkersChangesAndNothingElse) {
  TestWorker prefill(Role::kPrefill, 7);
  ::testing::internal::CaptureStderr();
  {
    RouterService service(
        {.node = {.incarnation = 99}, .workers = {{Role::kPrefill, prefill.address()}}}, Policy());
    service.Start({});
    while (!service.View().workers[0].healthy) std::this_thread::yield();
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(service.Audit().ok());  // Each is a step.
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (size_t at = 0; (at = log.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count("worker is up address=" + prefill.address()), 1) << log;
  EXPECT_LE(count("worker cannot be used"), 3) << log;
}

TEST(RouterServiceTest, RefusesAtOnceWhenTheInboxIsFull) {
  RouterService service({.node = {.incarnation = 99},
                         .workers = {{Role::kPrefill, "127.0.0.1:1"}},
                         .max_offered_requests = 1},
                        Policy());
  auto first = std::make_shared<NotingSink>();
  auto second = std::make_shared<NotingSink>();
  ASSERT_TRUE(service.Submit(Request(), first).ok());  // Not started: it stays in the inbox.
  EXPECT_EQ(service.Submit(Request(), second).status().code(),
            absl::StatusCode::kResourceExhausted);
  service.Stop();
  EXPECT_EQ(first->num_ends, 1);
  EXPECT_EQ(second->num_ends, 0);
}

}  // namespace
}  // namespace baton
