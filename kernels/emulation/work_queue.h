#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/graph.h"
#include "kernels/emulation/options.h"

namespace baton::emulation {

struct QueuedItem {
  WorkItem item;
  Stream* after = nullptr;  // Waits until that stream has done so many items.
  uint64_t after_count = 0;
};

struct Stream {
  int device = 0;
  std::deque<QueuedItem> queue;
  uint64_t queued = 0;
  uint64_t done = 0;
  bool busy = false;    // Its next item runs.
  bool asleep = false;  // Its next item is not ready.
  Graph* recording = nullptr;
  size_t lane = 0;       // Its own of that.
  bool of_graph = false;  // Made by the emulation, for a lane of a graph.
  unsigned flags = 0;
  int priority = 0;
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;  // Null: nothing was recorded.
  uint64_t count = 0;        // Done when the stream has done so many items.
  // The recording in which it was recorded last, 0 for none, and what of that comes before it.
  uint64_t capture = 0;
  Clock clock = {};
};

// The streams of all devices. Work runs only in Run*(), one item of a random stream at a time: in
// the thread that waits or asks, or else in one that does nothing else. Calls hold `mutex`, which
// is free while an item runs.
class WorkQueue {
 public:
  using Lock = std::unique_lock<std::mutex>;

  WorkQueue();

  void set_seed(uint64_t seed) { random_ = Random(seed); }

  // `stream`, or the device's null stream.
  Stream* Of(Stream* stream, int device) {
    return stream == nullptr ? &null_streams_[device] : stream;
  }
  Stream* AddStream(int device, unsigned flags, int priority);
  // All that the program made, in that order.
  std::vector<const Stream*> Streams() const;
  bool Owns(const Stream* stream) const;
  void Remove(Stream* stream);

  // Queues work, or records it if the stream records a graph.
  void Put(Stream* stream, WorkItem item);
  void Record(Event* event, Stream* stream);
  // A stream that waits for what another records takes part in it from now on. The error is that
  // of a wait across the edge of a recording, which is spoilt by it.
  cudaError_t Wait(Stream* stream, const Event* event);

  void BeginRecording(Stream* stream, cudaStreamCaptureMode mode);
  // Of all streams that took part.
  void EndRecording(const Graph* graph);
  // That of an event; null: it has ended, or the event is of none.
  Graph* RecordingOf(const Event& event) const;
  // Queues what a graph holds: behind what is on the stream, and before what comes on it.
  void Replay(Graph* graph, Stream* stream);
  // The lanes' streams go when what is on them has ended.
  void ReleaseStreams(Graph* graph);

  // Whether a recording forbids the calling thread to wait or allocate; such are spoilt by it.
  bool SpoilRecordings();

  // Runs items, or waits for the driver to, until done() is true. False: what is left waits for
  // itself for ever.
  bool RunUntil(Lock& lock, const std::function<bool()>& done);
  // What was not ready may be: something outside has happened. Any work that ends does the same.
  void Wake();
  // Runs a few items at random, unless the driver does.
  void RunSome(Lock& lock);
  // Runs whatever there is, for ever: from now on nobody else does. Before the first item after a
  // pause and behind the last before one it calls `around`, with `running`.
  [[noreturn]] void Drive(Lock& lock, const std::function<void(bool begins)>& around);
  bool IsIdle(int device) const;
  // Does it once all that is queued now has ended, at once if it has. Nothing is run for it.
  void Afterwards(std::function<void()> action);
  // Forgets what is queued, once nothing runs.
  void Clear(Lock& lock);

  std::mutex mutex;
  std::mutex running;  // Held while an item runs, taken after `mutex` or without it.
  bool driven = false;
  // Of the first item of each device that failed; later ones do not run.
  std::array<cudaError_t, kMostDevices> errors = {};

 private:
  struct Later {
    std::function<void()> action;
    // Streams, with how many items they must have done.
    std::vector<std::pair<const Stream*, uint64_t>> after;
  };

  // The stream does nothing more until `other` has done so many items.
  void PutWait(Stream* stream, Stream* other, uint64_t count);
  std::vector<Stream*> Ready() const;
  void DoWhatIsDue();
  bool IsBusy() const;
  bool RunOne(Lock& lock);

  bool IsAsleep() const;

  Random random_{1};
  uint64_t wakes_ = 0;
  uint64_t captures_ = 0;
  std::condition_variable changed_;  // Something was queued or has ended.
  std::array<Stream, kMostDevices> null_streams_;
  std::vector<Stream*> streams_;
  std::vector<Later> later_;
  // Also those that were destroyed: events recorded on them may still be asked.
  std::vector<std::unique_ptr<Stream>> owned_;
};

}  // namespace baton::emulation
