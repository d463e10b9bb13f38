#pragma once

#include "kernels/cuda/dialect.h"

namespace baton::detectors {

// What a kernel of clusters does, most of it wrong in one way.
enum class ClusterFault {
  kNone,
  kNoStartBarrier,  // Stores before a barrier says that the other block has started.
  kNoBarrier,       // Reads what others store with no barrier between,
  kBlockBarrier,    // with one of its own block alone,
  kStoresArrived,   // or with one at which the other arrives before it stores.
  kStoresLast,      // Stores behind the last barrier: the other block may have ended.
  kTwoStoreOne,     // Two blocks store in one place.
  kBeyondShared,
  kNoSuchBlock,
  kWaitsUnarrived,  // Waits at a barrier where it has not arrived.
  kArrivesTwice,
  kExitsBefore,    // A thread exits before the second barrier.
  kExitsUnwaited,  // A thread exits between arriving and waiting.
};

constexpr int kClusterThreads = 48;  // Of a block.

// Each block of a cluster tells the next one, round about: out [blocks, kClusterThreads] is what
// each thread is told, 100 * the teller's rank + the thread, times 4.
cudaError_t RunClusterFault(ClusterFault fault, int blocks, int cluster, float* out,
                            cudaStream_t stream);

}  // namespace baton::detectors
