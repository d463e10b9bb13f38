#pragma once

#include <cstdint>

#include "kernels/cuda/dialect.h"

namespace baton::detectors {

// What a kernel of sm_90a does, most of it wrong in one way.
enum class AsyncFault {
  kNone,
  kUninitialised,  // Arrives at an mbarrier that nobody has initialised.
  kInitialisedTwice,
  kNoInitFence,    // No fence.proxy.async behind the initialisation.
  kNoInitBarrier,  // No __syncthreads behind it.
  kNoWait,         // Products without waiting for their tiles.
  kWrongPhase,     // A wait for the phase before.
  kNoExpectation,  // An arrival that expects no bytes.
  kTooFewBytes,    // Expects less than lands,
  kTooManyBytes,   // or more.
  kNeverWaited,    // Ends with a copy in flight.
  kArrivesTwice,
  kReusesTooEarly,    // Overwrites a tile that a wgmma may still read.
  kReusesUnasked,     // The same once the wgmma has ended, but without waiting at a barrier.
  kNoProxyFence,      // Lets wgmma read what threads have written.
  kProxyFence,        // With the fence: correct.
  kNoSumsFence,       // No wgmma.fence before the first product.
  kWritesSums,        // Writes sums in flight.
  kWritesFencedSums,  // Writes sums between fence and product.
  kReadsSums,         // Reads sums in flight: NaN.
  kProductNotWaited,  // Ends with a wgmma in flight.
  kSplitWarpgroup,    // A warp exits before a wgmma.
  kOtherTiles,        // Warps of a warpgroup name other tiles.
  kMisplacedTile,     // A tile that begins at its second row.
};

// out [64, 128] = a [64, 64] * b [128, 64]^T, of bf16. One warpgroup multiplies, a warp more
// copies.
cudaError_t RunAsyncFault(AsyncFault fault, const uint16_t* a, const uint16_t* b, float* out,
                          cudaStream_t stream);

// The same of products whose first operand is in registers.
enum class HeldFault {
  kNone,
  kNoFence,              // Of the operand, but of its sums.
  kWritesOperand,        // While products are in flight.
  kWritesFencedOperand,  // Between fence and product.
  kMisplacedRows,        // The second operand begins at a row that is no multiple of 8.
};

// out [64, 128] = a [64, 64] * b [64, 128], of bf16, by one warpgroup.
cudaError_t RunHeldFault(HeldFault fault, const uint16_t* a, const uint16_t* b, float* out,
                         cudaStream_t stream);

// out = what a copy leaves of the box of 4 rows of 64 from (x, y, z) on of an array of 16-bit
// elements [layers][rows][columns], whose rows are `stride` bytes apart, as it lies in shared
// memory.
struct BoxArgs {
  const uint16_t* data = nullptr;
  uint64_t columns = 0, rows = 0, layers = 0;
  uint64_t stride = 0;
  int x = 0, y = 0, z = 0;
  uint16_t* out = nullptr;  // [4 * 64]
};
cudaError_t RunBox(const BoxArgs& args, cudaStream_t stream);

}  // namespace baton::detectors
