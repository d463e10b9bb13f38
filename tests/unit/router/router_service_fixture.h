#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "router/router_service.h"
#include "tests/unit/common/rpc/test_cluster.h"

// What the tests of a router's service share: sinks, requests, workers that the test plays, and the
// thread that tells clients.
namespace baton {

inline std::unique_ptr<RoutingPolicy> Policy() { return *MakeRoutingPolicy("least_loaded"); }

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

inline ValidRequest Request() {
  ValidRequest request;
  request.prompts = {{5, 6, 7}};
  request.sampling.max_tokens = 2;
  request.timeout = std::chrono::seconds(30);
  return request;
}

// Plays both workers for one sequence of two tokens: 11 from prefill, 12 from decode.
inline void ServeOne(TestWorker* prefill, TestWorker* decode) {
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
inline std::shared_ptr<NotingSink> SubmitLate(RouterService& service) {
  ValidRequest late = Request();
  late.timeout = std::chrono::milliseconds(1);
  auto sink = std::make_shared<NotingSink>();
  EXPECT_TRUE(service.Submit(std::move(late), sink).ok());
  return sink;
}

inline RouterServiceOptions OnePrefillWorker() {
  return {.node = {.incarnation = 9},
          .workers = {{Role::kPrefill, "127.0.0.1:1"}},
          .most_turn = std::chrono::milliseconds(50),
          .max_delivery_wait = std::chrono::hours(1)};
}

}  // namespace baton
