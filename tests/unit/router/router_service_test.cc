#include "router/router_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

std::unique_ptr<RoutingPolicy> Policy() { return *MakeRoutingPolicy("least_loaded"); }

// Notes what a client would see.
class NotingSink : public ResponseSink {
 public:
  void OnEvent(ClientEvent event) override {
    if (auto* chosen = std::get_if<ChoiceTokens>(&event)) {
      for (const TokenOutput& output : chosen->outputs) tokens.push_back(output.token);
    } else if (auto* last = std::get_if<RequestEnded>(&event)) {
      status = last->status;
      ++num_ends;
      if (num_ends == 1) ended.Notify();
    }
  }
  std::vector<int32_t> tokens;
  absl::Status status;
  int num_ends = 0;
  absl::Notification ended;
};

ValidRequest Request() {
  ValidRequest request;
  request.prompts = {{5, 6, 7}};
  request.sampling.max_tokens = 2;
  request.timeout = std::chrono::seconds(30);
  return request;
}

// Plays both workers for one sequence of two tokens: 11 from prefill, 12 from decode.
void ServeOne(TestWorker* prefill, TestWorker* decode) {
  const auto decode_call = decode->inbox.Next<DecodeOpened>();
  ASSERT_TRUE(decode_call.has_value());
  const auto n = static_cast<int32_t>(decode_call->request.tokens.size());
  decode->server.Emit(
      decode_call->call,
      ReservedEvent{.ticket = {.hi = 1}, .ranks = {{"127.0.0.1:1", {0, 4}}}, .decode = 8});
  const auto prefill_call = prefill->inbox.Next<PrefillOpened>();
  ASSERT_TRUE(prefill_call.has_value());
  ASSERT_TRUE(prefill_call->request.handoff.has_value());
  EXPECT_EQ(prefill_call->request.handoff->ticket, (TicketId{.hi = 1}));
  const TokenOutput first{.position = n, .token = 11};
  prefill->server.Emit(prefill_call->call, PrefilledEvent{.first = first});
  prefill->server.Close(prefill_call->call, absl::OkStatus());
  decode->server.Emit(
      decode_call->call,
      TokensEvent{
          .outputs = {first, {.position = n + 1, .token = 12, .finish = FinishReason::kLength}}});
  decode->server.Close(decode_call->call, absl::OkStatus());
}

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

// The thread that calls sinks, as far as the test lets it run.
class HeldTasks {
 public:
  RouterService::Hooks Hooks() {
    return {.deliver = [this](std::function<void()> task) {
      absl::MutexLock lock(&mutex_);
      if (takes_) tasks_.push_back(std::move(task));
      return takes_;
    }};
  }
  size_t num_waiting() {
    absl::MutexLock lock(&mutex_);
    return tasks_.size();
  }
  // Waits for it.
  void RunNext() {
    const auto has_one = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !tasks_.empty(); };
    mutex_.LockWhen(absl::Condition(&has_one));
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    mutex_.Unlock();
    task();
  }
  void TakeNoMore() {
    absl::MutexLock lock(&mutex_);
    takes_ = false;
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  bool takes_ = true;
};

// Of a request that ends by its time limit at once.
std::shared_ptr<NotingSink> SubmitLate(RouterService& service) {
  ValidRequest late = Request();
  late.timeout = std::chrono::milliseconds(1);
  auto sink = std::make_shared<NotingSink>();
  EXPECT_TRUE(service.Submit(std::move(late), sink).ok());
  return sink;
}

RouterServiceOptions OnePrefillWorker() {
  return {.node = {.incarnation = 9},
          .workers = {{Role::kPrefill, "127.0.0.1:1"}},
          .most_turn = std::chrono::milliseconds(50)};
}

TEST(RouterServiceTest, WhatTurnsSayToClientsIsOneTaskAtATimeOfTheThreadThatTellsThem) {
  RouterService service(OnePrefillWorker(), Policy());
  HeldTasks held;
  service.Start(held.Hooks());
  std::vector<std::shared_ptr<NotingSink>> sinks;
  const auto num_ended = [&] {
    return std::ranges::count_if(sinks, [](const auto& s) { return s->num_ends > 0; });
  };
  for (int i = 0; i < 150; ++i) sinks.push_back(SubmitLate(service));
  while (held.num_waiting() == 0) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(num_ended(), 0);
  // What is left is the next task: others of that thread have their turns in between.
  int num_tasks = 0;
  for (; num_ended() < 150; ++num_tasks) {
    EXPECT_LE(held.num_waiting(), 1u);
    const auto before = num_ended();
    held.RunNext();
    EXPECT_LE(num_ended() - before, 64);
  }
  EXPECT_GE(num_tasks, 3);

  for (int i = 0; i < 150; ++i) sinks.push_back(SubmitLate(service));
  while (held.num_waiting() == 0) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  held.TakeNoMore();
  sinks.push_back(SubmitLate(service));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(sinks.back()->ended.HasBeenNotified());  // Not beside what may run there.
  held.RunNext();
  for (const auto& sink : sinks) sink->ended.WaitForNotification();
  sinks.push_back(SubmitLate(service));
  sinks.back()->ended.WaitForNotification();
  service.Stop();
  for (const auto& sink : sinks) EXPECT_EQ(sink->num_ends, 1);
}

TEST(RouterServiceTest, IsNotAliveWhileTheThreadThatTellsClientsStandsStill) {
  RouterService service(OnePrefillWorker(), Policy());
  HeldTasks held;
  service.Start(held.Hooks());
  const auto sink = SubmitLate(service);
  while (held.num_waiting() == 0) absl::SleepFor(absl::Milliseconds(1));
  while (service.Alive()) {
  }
  absl::SleepFor(absl::Milliseconds(50));  // A turn of the node that took long has ended.
  for (int i = 0; i < 40; ++i, absl::SleepFor(absl::Milliseconds(5))) {
    ASSERT_FALSE(service.Alive()) << i;
  }
  held.RunNext();
  EXPECT_TRUE(sink->ended.HasBeenNotified());
  while (!service.Alive()) {
  }
  service.Stop();
}

// Else no client would hear anything any more, of a process that says it is well.
TEST(RouterServiceDeathTest, AnExceptionOutOfASinkEndsTheProcess) {
  struct Throwing : ResponseSink {
    void OnEvent(ClientEvent) override { throw std::runtime_error("a library's"); }
  };
  EXPECT_DEATH(
      {
        RouterService service(OnePrefillWorker(), Policy());
        HeldTasks held;
        service.Start(held.Hooks());
        ValidRequest late = Request();
        late.timeout = std::chrono::milliseconds(1);
        if (!service.Submit(std::move(late), std::make_shared<Throwing>()).ok()) std::exit(1);
        try {
          held.RunNext();
        } catch (const std::exception&) {
          std::_Exit(0);
        }
      },
      "a library's");
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
