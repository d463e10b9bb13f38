#include "common/transport/tcp/call_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace baton {

CallQueue::CallQueue() : wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

// Writing fails only when a wake is pending already, reading only when none is.
void CallQueue::Wake() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void CallQueue::Add(TransportCall call) {
  std::lock_guard lock(mutex_);
  if (calls_.empty()) Wake();
  calls_.push_back(std::move(call));
}

void CallQueue::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  Wake();
}

// A stop keeps the descriptor readable for good: its reader may be between two looks at stopped().
std::deque<TransportCall> CallQueue::Take() {
  std::lock_guard lock(mutex_);
  uint64_t count;
  if (!calls_.empty() && !stopped_) (void)!::read(wake_.get(), &count, sizeof(count));
  return std::exchange(calls_, {});
}

bool CallQueue::stopped() const {
  std::lock_guard lock(mutex_);
  return stopped_;
}

}  // namespace baton
