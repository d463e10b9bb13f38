#include "common/transport/nccl/blocking_calls.h"

#include <condition_variable>
#include <deque>
#include <utility>

#include "common/base/this_thread.h"

namespace baton::nccl {

struct BlockingCalls::Shared {
  Shared(std::shared_ptr<const Library> library, Device* device)
      : library(std::move(library)), device(device) {}

  const std::shared_ptr<const Library> library;
  Device* const device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Call> calls;
  std::vector<Result> results;
  bool in_call = false;
  bool stopped = false;
};

BlockingCalls::BlockingCalls(std::shared_ptr<const Library> library, Device* device, Post post)
    : shared_(std::make_shared<Shared>(std::move(library), device)), post_(std::move(post)) {
  if (post_ == nullptr) thread_ = std::thread([shared = shared_] { Run(shared); });
}

BlockingCalls::~BlockingCalls() {
  bool is_stuck;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopped = true;
    is_stuck = shared_->in_call;
  }
  if (!thread_.joinable()) return;
  shared_->changed.notify_all();
  is_stuck ? thread_.detach() : thread_.join();
}

void BlockingCalls::Run(const std::shared_ptr<Shared>& shared) {
  NameThisThread("nccl");
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stopped || !shared->calls.empty(); });
    if (shared->stopped) return;
    RunNext(*shared, lock);
  }
}

void BlockingCalls::RunNext(Shared& shared, std::unique_lock<std::mutex>& lock) {
  const Call call = shared.calls.front();
  shared.calls.pop_front();
  shared.in_call = true;
  lock.unlock();
  Result result = Do(shared, call);
  lock.lock();
  shared.in_call = false;
  shared.results.push_back(std::move(result));
}

BlockingCalls::Result BlockingCalls::Do(const Shared& shared, const Call& call) {
  Result result{.pair = call.pair};
  if (call.kind == Call::Kind::kAbort) {
    result.kind = Result::Kind::kAborted;
    result.status = shared.library->Abort(call.comm);
    return result;
  }
  result.id = call.id;
  // From here on the thread's calls are for this device.
  result.status = shared.device->NativeLane(Lane::kExchange).status();
  const bool makes = call.kind == Call::Kind::kMake;
  if (makes && result.status.ok()) {
    const auto id = shared.library->MakeUniqueId();
    result.status = id.status();
    if (id.ok()) result.id = *id;
  }
  if (!result.status.ok()) return result;
  const auto comm = shared.library->Init(result.id, makes ? 0 : 1);
  result.status = comm.status();
  if (comm.ok()) result.comm = *comm;
  return result;
}

void BlockingCalls::Add(const Call& call) {
  begun_.push_back(call.pair);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->calls.push_back(call);
  }
  if (post_ == nullptr) {
    shared_->changed.notify_all();
    return;
  }
  post_([shared = shared_] {
    std::unique_lock lock(shared->mutex);
    if (!shared->stopped) RunNext(*shared, lock);
  });
}

void BlockingCalls::Make(PairId pair) { Add({.kind = Call::Kind::kMake, .pair = pair}); }

void BlockingCalls::Join(PairId pair, const UniqueId& id) {
  Add({.kind = Call::Kind::kJoin, .pair = pair, .id = id});
}

void BlockingCalls::Abort(PairId pair, Comm* comm) {
  Add({.kind = Call::Kind::kAbort, .pair = pair, .comm = comm});
}

std::vector<BlockingCalls::Result> BlockingCalls::Take() {
  std::vector<Result> results;
  if (begun_.empty()) return results;
  const std::lock_guard lock(shared_->mutex);
  results.swap(shared_->results);
  begun_.erase(begun_.begin(), begun_.begin() + static_cast<int>(results.size()));
  return results;
}

}  // namespace baton::nccl
