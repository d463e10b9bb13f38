#include "kernels/emulation/work_queue.h"

#include <algorithm>
#include <map>
#include <utility>

namespace baton::emulation {

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

std::vector<const Stream*> WorkQueue::Streams() const {
  std::vector<const Stream*> streams(streams_.begin() + kMostDevices, streams_.end());
  std::erase_if(streams, [](const Stream* stream) { return stream->of_graph; });
  return streams;
}

bool WorkQueue::Owns(const Stream* stream) const {
  return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

void WorkQueue::Remove(Stream* stream) { std::erase(streams_, stream); }

void WorkQueue::Put(Stream* stream, WorkItem item) {
  if (stream->recording != nullptr) {
    stream->recording->Put(stream->lane, std::move(item));
    return;
  }
  stream->queue.push_back({std::move(item)});
  ++stream->queued;
  changed_.notify_all();
}

void WorkQueue::PutWait(Stream* stream, Stream* other, uint64_t count) {
  stream->queue.push_back(
      {.item = {.run = [] { return cudaSuccess; }, .kernel = {}}, .after = other,
       .after_count = count});
  ++stream->queued;
  changed_.notify_all();
}

void WorkQueue::Record(Event* event, Stream* stream) {
  event->capture = 0;
  if (stream->recording != nullptr) {
    event->capture = stream->recording->capture;
    event->clock = stream->recording->Now(stream->lane);
    return;
  }
  Put(stream, {.run = [] { return cudaSuccess; }, .kernel = {}});
  event->stream = stream;
  event->count = stream->queued;
}

cudaError_t WorkQueue::Wait(Stream* stream, const Event* event) {
  Graph* const own = stream->recording;
  const auto spoil = [](Graph* graph) {
    if (graph != nullptr) graph->valid = false;
  };
  if (event->capture == 0) {
    if (event->stream == nullptr) return cudaSuccess;
    spoil(own);
    if (own != nullptr) return cudaErrorStreamCaptureIsolation;
    PutWait(stream, event->stream, event->count);
    return cudaSuccess;
  }
  Graph* const graph = RecordingOf(*event);
  if (graph == nullptr || (own != nullptr && own != graph)) {
    spoil(own);
    spoil(graph);
    return graph == nullptr ? cudaErrorCapturedEvent : cudaErrorStreamCaptureMerge;
  }
  if (own == nullptr) {
    stream->recording = graph;
    stream->lane = graph->AddLane(stream->device);
  }
  graph->Follow(stream->lane, event->clock);
  return cudaSuccess;
}

void WorkQueue::BeginRecording(Stream* stream, cudaStreamCaptureMode mode) {
  auto* const graph = new Graph;
  graph->capture = ++captures_;
  graph->mode = mode;
  stream->lane = graph->AddLane(stream->device);
  stream->recording = graph;
}

Graph* WorkQueue::RecordingOf(const Event& event) const {
  if (event.capture == 0) return nullptr;
  for (const Stream* stream : streams_) {
    Graph* const graph = stream->recording;
    if (graph != nullptr && graph->capture == event.capture) return graph;
  }
  return nullptr;
}

void WorkQueue::Replay(Graph* graph, Stream* stream) {
  const uint64_t begin = stream->queued;
  std::map<size_t, Stream*>& streams = graph->streams;
  streams[0] = stream;
  for (size_t lane = 1; lane < graph->lanes.size(); ++lane) {
    Stream*& own = streams[lane];
    if (own == nullptr) {
      own = AddStream(graph->lanes[lane].device, 0, 0);
      own->of_graph = true;
    }
    PutWait(own, stream, begin);
  }
  // What a stream has to have done for that many items of its lane to be.
  std::map<size_t, std::vector<uint64_t>> ends;
  std::map<size_t, Clock> waited;
  for (const Graph::Item& item : graph->items) {
    Stream* const own = streams[item.lane];
    Clock& behind = waited[item.lane];
    behind.resize(graph->lanes.size());
    for (size_t lane = 0; lane < item.after.size(); ++lane) {
      if (item.after[lane] <= behind[lane]) continue;
      behind[lane] = item.after[lane];
      PutWait(own, streams[lane], ends[lane][behind[lane] - 1]);
    }
    Put(own, item.work);
    ends[item.lane].push_back(own->queued);
  }
  for (size_t lane = 1; lane < graph->lanes.size(); ++lane) {
    PutWait(stream, streams[lane], streams[lane]->queued);
  }
  streams.erase(0);
}

void WorkQueue::ReleaseStreams(Graph* graph) {
  for (const auto& [lane, stream] : graph->streams) {
    Afterwards([this, stream = stream] { Remove(stream); });
  }
  graph->streams.clear();
}

bool WorkQueue::SpoilRecordings() {
  bool spoilt = false;
  for (const Stream* stream : streams_) {
    Graph* const graph = stream->recording;
    if (graph == nullptr) continue;
    const bool forbids_all = graph->mode == cudaStreamCaptureModeGlobal;
    if (!forbids_all && pthread_equal(graph->thread, pthread_self()) == 0) continue;
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
