#pragma once

#include <cstdint>

#include "kernels/cuda/dialect.h"

namespace baton::detectors {

// What a kernel does, most of it wrong in one way.
enum class Fault {
  kNone,
  kNoBarrier,             // Reads a neighbour's shared word without __syncthreads.
  kNoWarpBarrier,         // The same within a warp, without __syncwarp.
  kWarpBarrier,           // With it: correct.
  kOverwrites,            // Writes a shared word that a neighbour may still read.
  kUninitialised,         // Reads a shared word that nobody wrote.
  kBeyondShared,          // Writes behind its shared memory.
  kTooMuchShared,         // Uses a larger struct than it was launched with.
  kBeyondGlobal,          // Writes behind an allocation.
  kMisalignedGlobal,      // Loads 16 bytes from an address that is not a multiple.
  kMisalignedShared,      // The same of shared memory.
  kHostPointer,           // `data` is host memory.
  kSplitBarrier,          // Half of the threads meet at another __syncthreads.
  kEarlyExit,             // A thread exits before a __syncthreads.
  kSplitWarp,             // Half of a warp meets at another shuffle.
  kForeignMask,           // A mask without the caller.
  kAbsentLane,            // A mask with a lane that has exited.
  kShuffleOutside,        // Shuffles from a lane that is not in the mask.
  kCopyNotWaited,         // Reads the destination of a cp.async in flight.
  kCopyNotCommitted,      // Exits with a cp.async that was never committed.
  kCopyNeverWaited,       // Exits with a group that was never waited for.
  kCopyOfOther,           // Waits for its own copies, then reads another's without a barrier.
  kCopyOverwritten,       // Writes the destination of a cp.async in flight.
  kBlocksWriteOne,        // All blocks write one word.
  kBlockReadsOther,       // Block 1 reads what block 0 wrote.
  kBlockOverwritesRead,   // Block 1 writes what block 0 reads.
  kThreadsWriteOne,       // Threads of a block write one global word.
  kLastBlockSums,         // The last block to arrive sums what all wrote, with fences: correct.
  kLastBlockNoFence,      // Without the fence before a block counts;
  kLastBlockFencesFirst,  // with one before it writes;
  kLastBlockUnknown,      // by a thread that nobody has told of what was written;
  kLastBlockReadsAtOnce,  // without the one behind the last count;
  kLastBlockOtherThread,  // by a thread that does not count.
  kPlainAdd,              // += where atomicAdd must stand.
  kSpins,                 // Waits for a word that nobody writes.
  kSharedPart,            // Reads 16 shared bytes of which another thread writes a word.
  kSharedOtherPart,       // Reads another word of them: correct.
  kGlobalPart,            // The same of global memory,
  kGlobalOtherPart,       // correct.
};

struct FaultArgs {
  Fault fault = Fault::kNone;
  float* data = nullptr;  // [64 + 2 * blocks]
  uint32_t* counter = nullptr;
};

// 64 threads a block.
cudaError_t RunFault(const FaultArgs& args, int blocks, cudaStream_t stream);

// d = a * b + c by one mma.sync: a [16][16] and b [8][16] (its columns) of bf16 or f16, c and d
// [16][8]. One warp; a and b come through ldmatrix.
cudaError_t RunProduct(bool is_bf16, const uint16_t* a, const uint16_t* b, float* c,
                       cudaStream_t stream);

// out[i] = what the lanes of a warp see: shuffles, votes, atomics. [5][32]
cudaError_t RunWarpFunctions(uint32_t* out, cudaStream_t stream);

// order[i] = when thread i of all came by, of 4 blocks of 64 threads.
cudaError_t RunOrder(uint32_t* counter, uint32_t* order, cudaStream_t stream);

// *to += by, in one thread.
cudaError_t RunAdd(float* to, float by, cudaStream_t stream);

}  // namespace baton::detectors
