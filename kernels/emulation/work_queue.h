#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "kernels/emulation/cuda_api.h"

namespace baton::emulation {

// One thing that a stream does.
struct WorkItem {
  std::function<cudaError_t()> run;
  std::string kernel;  // Its name if it is a launch.
};

struct Graph {
  std::vector<WorkItem> items;
  bool valid = true;

  // Whether it launches the same kernels in the same order.
  bool IsLike(const Graph& other) const;
};

struct QueuedItem {
  WorkItem item;
  Stream* after = nullptr;  // Waits until that stream has done so many items.
  uint64_t after_count = 0;
};

struct Stream {
  std::deque<QueuedItem> queue;
  uint64_t queued = 0;
  uint64_t done = 0;
  bool busy = false;  // Its next item runs.
  Graph* recording = nullptr;
};

struct Event {
  Stream* stream = nullptr;  // Null: nothing was recorded.
  uint64_t count = 0;        // Done when the stream has done so many items.
  Graph* recording = nullptr;
};

// The streams of a device. Work runs only in Run*(), one item of a random stream at a time: in the
// thread that waits or asks, or else in one that does nothing else. Calls hold `mutex`, which is
// free while an item runs.
class WorkQueue {
 public:
  using Lock = std::unique_lock<std::mutex>;

  WorkQueue() { streams_.push_back(&null_stream_); }

  void set_seed(uint64_t seed) { random_ = Random(seed); }

  Stream* Of(Stream* stream) { return stream == nullptr ? &null_stream_ : stream; }
  Stream* AddStream();
  bool Owns(const Stream* stream) const;
  void Remove(Stream* stream);

  // Queues work, or records it if the stream records a graph.
  void Put(Stream* stream, WorkItem item);
  void Record(Event* event, Stream* stream);
  void Wait(Stream* stream, Event* event);
  // Queues what a graph holds.
  void Replay(const Graph& graph, Stream* stream);

  bool IsRecording() const;
  void SpoilRecordings();
  // Of all streams that took part.
  void EndRecording(const Graph* graph);

  // Runs items, or waits for the driver to, until done() is true. False: what is left waits for
  // itself for ever.
  bool RunUntil(Lock& lock, const std::function<bool()>& done);
  // Runs a few items at random, unless the driver does.
  void RunSome(Lock& lock);
  // Runs whatever there is, for ever: from now on nobody else does.
  [[noreturn]] void Drive(Lock& lock);
  bool IsIdle() const;
  // Forgets what is queued, once nothing runs.
  void Clear(Lock& lock);

  std::mutex mutex;
  std::mutex running;  // Held while an item runs, taken after `mutex` or without it.
  bool driven = false;
  cudaError_t error = cudaSuccess;  // Of the first item that failed; later ones do not run.

 private:
  std::vector<Stream*> Ready() const;
  bool IsBusy() const;
  bool RunOne(Lock& lock);

  Random random_{1};
  std::condition_variable changed_;  // Something was queued or has ended.
  Stream null_stream_;
  std::vector<Stream*> streams_;
  // Also those that were destroyed: events recorded on them may still be asked.
  std::vector<std::unique_ptr<Stream>> owned_;
};

}  // namespace baton::emulation
