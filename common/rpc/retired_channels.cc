#include "common/rpc/retired_channels.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/time/time.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "common/base/this_thread.h"
#include "common/rpc/connection.h"

namespace baton {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

// A channel to nobody, with a call that has ended before it began. As long as it is there, gRPC
// keeps its queue of callbacks: 1.51 at times frees it twice when a process's last channel goes.
struct HeldQueue {
  std::unique_ptr<v1::Cluster::Stub> stub = v1::Cluster::NewStub(
      grpc::CreateChannel("unix:/dev/null/nobody", grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::HelloRequest request;
  v1::HelloResponse response;
};

void HoldQueueOfCallbacks() {
  // Read by nobody: volatile, so that it is there for who looks for leaks.
  [[maybe_unused]] static HeldQueue* volatile const held = [] {
    auto* const queue = new HeldQueue;  // For as long as the process.
    queue->context.set_deadline(DeadlineAfter(Duration::zero()));
    queue->stub->async()->Hello(&queue->context, &queue->request, &queue->response,
                                [](const grpc::Status&) {});
    return queue;
  }();
}

}  // namespace

RetiredChannels::RetiredChannels() : thread_([this] { Run(); }) { HoldQueueOfCallbacks(); }

RetiredChannels::~RetiredChannels() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();  // What is left in the list is closed after it.
}

void RetiredChannels::Add(std::shared_ptr<grpc::Channel> channel) {
  absl::MutexLock lock(&mutex_);
  channels_.push_back(std::move(channel));
}

std::vector<std::shared_ptr<grpc::Channel>> RetiredChannels::TakeUnused() {
  const auto unused = std::partition(channels_.begin(), channels_.end(),
                                     [](const auto& channel) { return channel.use_count() > 1; });
  std::vector<std::shared_ptr<grpc::Channel>> taken(std::make_move_iterator(unused),
                                                    std::make_move_iterator(channels_.end()));
  channels_.erase(unused, channels_.end());
  return taken;
}

// Who uses a channel tells nobody when he is done, so this looks from time to time.
void RetiredChannels::Run() {
  NameThisThread("retired-channel");
  const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !channels_.empty();
  };
  for (;;) {
    std::vector<std::shared_ptr<grpc::Channel>> unused;  // Closed outside the lock.
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&any));
    unused = TakeUnused();
    if (stopped_) return;
    if (unused.empty()) mutex_.AwaitWithTimeout(absl::Condition(&stopped_), kTick);
  }
}

}  // namespace baton
