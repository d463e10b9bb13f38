#include "common/rpc/status_broadcast.h"

#include <chrono>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/this_thread.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/silence.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kStatusTick(50);
constexpr int kTicksPerHeartbeat = 8;  // 400 ms, so that a late tick stays below 500 ms.
constexpr int kTicksPerBeat = kBeatInterval / kStatusTick;

}  // namespace

void StatusBroadcast::Start() {
  thread_ = std::jthread([this] {
    NameThisThread("status");
    Run();
  });
}

void StatusBroadcast::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

grpc::ServerWriteReactor<v1::WorkerStatus>* StatusBroadcast::Add(
    grpc::CallbackServerContext* context) {
  absl::MutexLock lock(&mutex_);
  const uint64_t key = ++last_key_;
  auto call = StatusCall::Create(context, {.on_done = [this, key] { Remove(key); }});
  if (stopped_ || std::ssize(watchers_) >= max_watchers_) {
    call->Close(absl::ResourceExhaustedError("too many watchers: end one of them"));
  } else {
    watchers_[key] = {.call = call, .ticks = kTicksPerHeartbeat};
  }
  return call.get();
}

void StatusBroadcast::AbandonUnless(
    const std::function<bool(const grpc::AuthContext&)>& is_trusted) {
  for (const auto& call : Calls()) call->AbandonUnless(is_trusted);
}

void StatusBroadcast::CloseAll() {
  for (const auto& call : Calls()) {
    call->Close(absl::UnavailableError("the worker is shutting down"));
  }
}

std::vector<std::shared_ptr<StatusBroadcast::StatusCall>> StatusBroadcast::Calls() {
  std::vector<std::shared_ptr<StatusCall>> calls;
  absl::MutexLock lock(&mutex_);
  for (auto& [key, watcher] : watchers_) calls.push_back(watcher.call);
  return calls;
}

void StatusBroadcast::Remove(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  watchers_.erase(key);
}

void StatusBroadcast::Run() {
  const auto wake = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopped_; };
  for (int tick = 1;; ++tick) {
    if (tick % kTicksPerBeat == 0) hooks_.beat();
    v1::WorkerStatus status;
    std::vector<std::shared_ptr<StatusCall>> due;
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&wake), absl::FromChrono(kStatusTick))) return;
      if (watchers_.empty() || !hooks_.node_lives()) continue;
      ToProto(hooks_.status(), &status);
      Seal(&status);
      due = TakeDue(status.SerializeAsString());
    }
    for (const auto& call : due) call->Write(status);
  }
}

std::vector<std::shared_ptr<StatusBroadcast::StatusCall>> StatusBroadcast::TakeDue(
    const std::string& bytes) {
  std::vector<std::shared_ptr<StatusCall>> due;
  for (auto& [key, watcher] : watchers_) {
    ++watcher.ticks;
    if (watcher.ticks < kTicksPerHeartbeat && bytes == watcher.last) continue;
    if (!watcher.call->Idle()) continue;
    due.push_back(watcher.call);
    watcher.last = bytes;
    watcher.ticks = 0;
  }
  return due;
}

}  // namespace baton
