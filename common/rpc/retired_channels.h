#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// Closes channels, and with them their connections, once no call uses them any more. On a thread of
// its own: the last channel of a process waits for gRPC's threads, so none of them may close it.
class RetiredChannels {
 public:
  RetiredChannels();
  ~RetiredChannels();  // Closes all; no call may be left.

  void Add(std::shared_ptr<grpc::Channel> channel);

 private:
  void Run();
  // Those that nobody else holds; they leave the list.
  std::vector<std::shared_ptr<grpc::Channel>> TakeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace baton
