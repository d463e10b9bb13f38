#include "kernels/emulation/work_queue.h"

#include <algorithm>
#include <utility>

namespace baton::emulation {

bool Graph::IsLike(const Graph& other) const {
  return std::equal(items.begin(), items.end(), other.items.begin(), other.items.end(),
                    [](const WorkItem& a, const WorkItem& b) { return a.kernel == b.kernel; });
}

WorkQueue::WorkQueue() {
  for (int device = 0; device < kMostDevices; ++device) {
    null_streams_[device].device = device;
    streams_.push_back(&null_streams_[device]);
  }
}

Stream* WorkQueue::AddStream(int device, unsigned flags, int priority) {
  owned_.push_back(std::make_unique<Stream>());
  owned_.back()->device = device;
  owned_.back()->flags = flags;
  owned_.back()->priority = priority;
  streams_.push_back(owned_.back().get());
  return streams_.back();
}

bool WorkQueue::Owns(const Stream* stream) const {
  return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

void WorkQueue::Remove(Stream* stream) { std::erase(streams_, stream); }

void WorkQueue::Put(Stream* stream, WorkItem item) {
  if (stream->recording != nullptr) {
    stream->recording->items.push_back(std::move(item));
    return;
  }
  stream->queue.push_back({std::move(item)});
  ++stream->queued;
  changed_.notify_all();
}

void WorkQueue::Record(Event* event, Stream* stream) {
  if (stream->recording != nullptr) {
    // Within a graph events only order its items, which are kept in one order.
    event->recording = stream->recording;
    return;
  }
  Put(stream, {.run = [] { return cudaSuccess; }});
  event->recording = nullptr;
  event->stream = stream;
  event->count = stream->queued;
}

void WorkQueue::Wait(Stream* stream, Event* event) {
  if (event->recording != nullptr) {
    // This stream's work joins the graph.
    if (stream->device != event->recording->device) event->recording->valid = false;
    stream->recording = event->recording;
    return;
  }
  if (event->stream == nullptr) return;
  Put(stream, {.run = [] { return cudaSuccess; }});
  if (stream->recording != nullptr) return;
  stream->queue.back().after = event->stream;
  stream->queue.back().after_count = event->count;
}

void WorkQueue::Replay(const Graph& graph, Stream* stream) {
  for (const WorkItem& item : graph.items) Put(stream, item);
}

bool WorkQueue::SpoilRecordings() {
  bool spoilt = false;
  for (const Stream* stream : streams_) {
    Graph* const graph = stream->recording;
    if (graph == nullptr) continue;
    if (!graph->forbids_all && pthread_equal(graph->thread, pthread_self()) == 0) continue;
    graph->valid = false;
    spoilt = true;
  }
  return spoilt;
}

void WorkQueue::EndRecording(const Graph* graph) {
  for (Stream* stream : streams_) {
    if (stream->recording == graph) stream->recording = nullptr;
  }
}

std::vector<Stream*> WorkQueue::Ready() const {
  std::vector<Stream*> ready;
  for (Stream* stream : streams_) {
    if (stream->busy || stream->queue.empty()) continue;
    if (stream->asleep && errors[stream->device] == cudaSuccess) continue;
    const QueuedItem& next = stream->queue.front();
    if (next.after == nullptr || next.after->done >= next.after_count) ready.push_back(stream);
  }
  return ready;
}

bool WorkQueue::IsBusy() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const Stream* s) { return s->busy; });
}

bool WorkQueue::IsAsleep() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const Stream* s) { return s->asleep; });
}

void WorkQueue::Wake() {
  ++wakes_;
  for (Stream* stream : streams_) stream->asleep = false;
  changed_.notify_all();
}

bool WorkQueue::RunOne(Lock& lock) {
  const std::vector<Stream*> ready = Ready();
  if (ready.empty()) return false;
  Stream* stream = ready[random_.Below(ready.size())];
  WorkItem item = std::move(stream->queue.front().item);
  stream->queue.pop_front();
  cudaError_t& error = errors[stream->device];
  if (error == cudaSuccess) {
    stream->busy = true;
    const uint64_t wakes = wakes_;
    lock.unlock();
    cudaError_t result;
    {
      const std::lock_guard alone(running);
      result = item.run();
    }
    lock.lock();
    stream->busy = false;
    if (result == cudaErrorNotReady) {
      stream->queue.push_front({std::move(item)});
      stream->asleep = wakes == wakes_;
      changed_.notify_all();
      return true;
    }
    if (error == cudaSuccess) error = result;
  }
  ++stream->done;
  DoWhatIsDue();
  Wake();
  return true;
}

bool WorkQueue::RunUntil(Lock& lock, const std::function<bool()>& done) {
  while (!done()) {
    if (!driven && RunOne(lock)) continue;
    if (Ready().empty() && !IsBusy() && !IsAsleep()) return false;
    changed_.wait(lock);
  }
  return true;
}

void WorkQueue::RunSome(Lock& lock) {
  if (driven) return;
  for (uint64_t n = random_.Below(3); n > 0; --n) {
    if (!RunOne(lock)) return;
  }
}

void WorkQueue::Drive(Lock& lock, const std::function<void(bool begins)>& around) {
  driven = true;
  const auto call = [&](bool begins) {
    const std::lock_guard alone(running);
    around(begins);
  };
  for (;;) {
    changed_.wait(lock, [this] { return !Ready().empty(); });
    call(true);
    while (RunOne(lock)) {
    }
    call(false);
  }
}

bool WorkQueue::IsIdle(int device) const {
  return std::all_of(streams_.begin(), streams_.end(), [device](const Stream* s) {
    return s->device != device || (s->queue.empty() && !s->busy);
  });
}

void WorkQueue::Afterwards(std::function<void()> action) {
  Later later{.action = std::move(action)};
  for (const Stream* stream : streams_) later.after.emplace_back(stream, stream->queued);
  later_.push_back(std::move(later));
  DoWhatIsDue();
}

void WorkQueue::DoWhatIsDue() {
  std::erase_if(later_, [](const Later& later) {
    const bool due = std::ranges::all_of(
        later.after, [](const auto& entry) { return entry.first->done >= entry.second; });
    if (due) later.action();
    return due;
  });
}

void WorkQueue::Clear(Lock& lock) {
  changed_.wait(lock, [this] { return !IsBusy(); });
  for (Stream* stream : streams_) {
    stream->queue.clear();
    stream->done = stream->queued;
    stream->asleep = false;
    stream->recording = nullptr;
  }
  DoWhatIsDue();
  errors.fill(cudaSuccess);
}

}  // namespace baton::emulation
