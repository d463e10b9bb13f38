#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/emulation/cuda_api.h"

namespace baton::emulation {

// One thing that a stream does.
struct WorkItem {
  // cudaErrorNotReady: it has not ended, and keeps its stream. It runs again after Wake().
  std::function<cudaError_t()> run;
  std::string kernel;  // Its name if it is a launch.
};

// How many items of each lane of a graph come before something; lanes beyond its end: none.
using Clock = std::vector<size_t>;

// What streams record together, or what of it can be launched. A lane is what one stream recorded,
// in its order; between lanes only events order items.
struct Graph {
  // Of the memory of each device, for one that can be launched.
  static constexpr size_t kBytes = size_t{64} << 10;

  struct Lane {
    int device = 0;
    size_t count = 0;  // Of its items.
    Clock seen;        // What of other lanes its next item comes behind.
  };
  struct Item {
    WorkItem work;
    size_t lane = 0;
    Clock after;  // What of other lanes comes before it.
  };

  size_t AddLane(int device);
  void Put(size_t lane, WorkItem work);
  // All that comes before what a lane puts next.
  Clock Now(size_t lane) const;
  // What the lane puts next comes behind that too.
  void Follow(size_t lane, const Clock& clock);

  // Of the first lane's stream, on which alone it begins, ends and is launched.
  int device() const { return lanes[0].device; }
  // Whether the first lane has waited for all that the others put.
  bool IsJoined() const;
  // Whether it launches the same kernels in the same order on the same devices.
  bool IsLike(const Graph& other) const;

  std::vector<Lane> lanes;  // The first is that of the stream that began.
  std::vector<Item> items;  // In the order of the calls.

  // While it is recorded: which recording it is, and whose calls may not wait or allocate, that
  // thread's or all.
  uint64_t capture = 0;
  bool valid = true;
  pthread_t thread = pthread_self();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;

  // Of one that can be launched: where the lanes but the first run, and its memory of each device.
  std::map<size_t, Stream*> streams;
  std::map<int, std::byte*> memory;
};

}  // namespace baton::emulation
