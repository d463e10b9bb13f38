#include "kernels/emulation/work_queue.h"

#include <algorithm>
#include <utility>

namespace baton::emulation {

bool Graph::IsLike(const Graph& other) const {
  return std::equal(items.begin(), items.end(), other.items.begin(), other.items.end(),
                    [](const WorkItem& a, const WorkItem& b) { return a.kernel == b.kernel; });
}

Stream* WorkQueue::AddStream() {
  owned_.push_back(std::make_unique<Stream>());
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
    stream->recording = event->recording;  // This stream's work joins the graph.
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

bool WorkQueue::IsRecording() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const Stream* s) { return s->recording != nullptr; });
}

void WorkQueue::SpoilRecordings() {
  for (Stream* stream : streams_) {
    if (stream->recording != nullptr) stream->recording->valid = false;
  }
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
    const QueuedItem& next = stream->queue.front();
    if (next.after == nullptr || next.after->done >= next.after_count) ready.push_back(stream);
  }
  return ready;
}

bool WorkQueue::IsBusy() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const Stream* s) { return s->busy; });
}

bool WorkQueue::RunOne(Lock& lock) {
  const std::vector<Stream*> ready = Ready();
  if (ready.empty()) return false;
  Stream* stream = ready[random_.Below(ready.size())];
  const WorkItem item = std::move(stream->queue.front().item);
  stream->queue.pop_front();
  if (error == cudaSuccess) {
    stream->busy = true;
    lock.unlock();
    cudaError_t result;
    {
      const std::lock_guard alone(running);
      result = item.run();
    }
    lock.lock();
    stream->busy = false;
    if (error == cudaSuccess) error = result;
  }
  ++stream->done;
  changed_.notify_all();
  return true;
}

bool WorkQueue::RunUntil(Lock& lock, const std::function<bool()>& done) {
  while (!done()) {
    if (!driven && RunOne(lock)) continue;
    if (Ready().empty() && !IsBusy()) return false;
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

void WorkQueue::Drive(Lock& lock) {
  driven = true;
  for (;;) {
    if (!RunOne(lock)) changed_.wait(lock);
  }
}

bool WorkQueue::IsIdle() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream* s) { return s->queue.empty() && !s->busy; });
}

void WorkQueue::Clear(Lock& lock) {
  changed_.wait(lock, [this] { return !IsBusy(); });
  for (Stream* stream : streams_) {
    stream->queue.clear();
    stream->done = stream->queued;
    stream->recording = nullptr;
  }
  error = cudaSuccess;
}

}  // namespace baton::emulation
