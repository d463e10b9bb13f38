#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/cluster.pb.h"
#include "common/node/message.h"
#include "common/rpc/server_call.h"

namespace baton {

// Sends the node's status to all watchers, while the node lives: on change, at most one each tick,
// and as a heartbeat. Calls `beat` each second.
class StatusBroadcast {
 public:
  struct Hooks {
    std::function<WorkerStatus()> status;
    std::function<bool()> node_lives;
    std::function<void()> beat;
  };
  StatusBroadcast(Hooks hooks, int max_watchers)
      : hooks_(std::move(hooks)), max_watchers_(max_watchers) {}
  ~StatusBroadcast() { Stop(); }

  void Start();
  void Stop();

  grpc::ServerWriteReactor<v1::WorkerStatus>* Add(grpc::CallbackServerContext* context);

  // Of those that watch; theirs ends of whom `is_trusted` is false.
  void AbandonUnless(const std::function<bool(const grpc::AuthContext&)>& is_trusted);

  // After it every watcher's stream ends.
  void CloseAll();

 private:
  using StatusCall = ServerCall<v1::WorkerStatus>;
  struct Watcher {
    std::shared_ptr<StatusCall> call;
    std::string last;  // What was sent last, serialised.
    int ticks = 0;     // Since then.
  };

  std::vector<std::shared_ptr<StatusCall>> Calls();
  void Remove(uint64_t key);
  void Run();
  // A watcher that does not read gets the newest status later, never a backlog.
  std::vector<std::shared_ptr<StatusCall>> TakeDue(const std::string& bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Hooks hooks_;
  const int max_watchers_;
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace baton
