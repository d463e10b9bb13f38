// What the router's service says to clients, and the thread on which it does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/unit/router/router_service_fixture.h"

namespace baton {
namespace {

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

// Counts what it is told at a time.
class CountingSink : public NotingSink {
 public:
  void OnEvent(ClientEvent event) override {
    num_events += std::holds_alternative<ChoiceTokens>(event) ? 1 : 0;
    NotingSink::OnEvent(std::move(event));
  }
  int num_events = 0;
};

// A request that has its first token, and the decode worker's call of it.
std::pair<std::shared_ptr<CountingSink>, CallId> BeginAnswer(RouterService& service,
                                                             TestWorker& prefill,
                                                             TestWorker& decode, int num_tokens) {
  ValidRequest request = Request();
  request.sampling.max_tokens = num_tokens;
  auto sink = std::make_shared<CountingSink>();
  EXPECT_TRUE(service.Submit(std::move(request), sink).ok());
  const CallId call = decode.inbox.Next<DecodeOpened>()->call;
  decode.server.Emit(
      call, ReservedEvent{.ticket = {.hi = 1}, .ranks = {{"127.0.0.1:1", {0, 4}}}, .decode = 8});
  const CallId prefill_call = prefill.inbox.Next<PrefillOpened>()->call;
  prefill.server.Emit(prefill_call,
                      PrefilledEvent{.first = TokenOutput{.position = 3, .token = 3}});
  prefill.server.Close(prefill_call, absl::OkStatus());
  return {std::move(sink), call};
}

TEST(RouterServiceTest, WhereTooMuchWaitsToBeToldTokensJoinThoseOfTheirChoice) {
  constexpr int kTokens = 100;
  TestWorker prefill(Role::kPrefill, 7);
  TestWorker decode(Role::kDecode, 8);
  RouterService service(
      {.node = {.incarnation = 99},
       .workers = {{Role::kPrefill, prefill.address()}, {Role::kDecode, decode.address()}},
       .max_deliveries = 8,
       .max_delivery_wait = std::chrono::hours(1)},
      Policy());
  HeldTasks held;
  service.Start(held.Hooks());
  ServeOne(&prefill, &decode);  // The readiness probe, which is not told either.
  const auto [first, first_call] = BeginAnswer(service, prefill, decode, kTokens);
  const auto [second, second_call] = BeginAnswer(service, prefill, decode, kTokens);
  for (int token = 4; token < 3 + kTokens; ++token) {
    TokenOutput output{.position = token, .token = token};
    if (token == 2 + kTokens) output.finish = FinishReason::kLength;
    decode.server.Emit(first_call, TokensEvent{.outputs = {output}});
    output.token += 200;
    decode.server.Emit(second_call, TokensEvent{.outputs = {output}});
  }
  decode.server.Close(first_call, absl::OkStatus());
  decode.server.Close(second_call, absl::OkStatus());
  const Time give_up = SteadyNow() + std::chrono::seconds(30);
  while (service.counters().ok < 3 && SteadyNow() < give_up) std::this_thread::yield();
  ASSERT_EQ(service.counters().ok, 3);
  EXPECT_EQ(first->num_events, 0);
  while (!first->ended.HasBeenNotified() || !second->ended.HasBeenNotified()) held.RunNext();
  EXPECT_LE(first->num_events + second->num_events, 8 + 3) << "one more of each choice";
  std::vector<int32_t> expected(kTokens);
  std::iota(expected.begin(), expected.end(), 3);
  EXPECT_EQ(first->tokens, expected);
  for (int32_t& token : expected) token += token > 3 ? 200 : 0;
  EXPECT_EQ(second->tokens, expected);
  EXPECT_EQ(first->num_ends, 1);
}

TEST(RouterServiceTest, TakesNoRequestWhileClientsHearOfThoseItHasTooLate) {
  RouterServiceOptions options = OnePrefillWorker();
  options.max_delivery_wait = std::chrono::milliseconds(20);
  options.max_deliveries = 2;
  RouterService service(options, Policy());
  HeldTasks held;
  service.Start(held.Hooks());
  const auto waits = SubmitLate(service);
  while (held.num_waiting() == 0) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(30));
  const auto submit = [&] {
    return service.Submit(Request(), std::make_shared<NotingSink>()).status();
  };
  EXPECT_TRUE(submit().ok());  // One alone is late as this process may be: none waits for it.
  const auto also_waits = SubmitLate(service);
  absl::Status refused;
  for (; refused.ok(); absl::SleepFor(absl::Milliseconds(2))) refused = submit();
  EXPECT_THAT(refused.message(), testing::HasSubstr("behind with its answers")) << refused;
  held.RunNext();
  EXPECT_TRUE(waits->ended.HasBeenNotified() && also_waits->ended.HasBeenNotified());
  EXPECT_TRUE(service.Submit(Request(), std::make_shared<NotingSink>()).ok());
  held.TakeNoMore();
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

}  // namespace
}  // namespace baton
