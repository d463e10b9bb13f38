#pragma once

// What a test tells the emulated GPUs and asks of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/options.h"
#include "kernels/emulation/tensor_core.h"

namespace baton::emulation {

// Order of threads within a block, of blocks, and of work on different streams.
void SetSeed(uint64_t seed);

// What the first failure was: kernel, block, thread, memory and lines of source. Empty: none.
std::string LastMessage();

// Fresh devices: forgets failures, queued work and peer access. Memory stays as it is.
void ResetDevice();

// From now on there are so many. Without `peers` none can be let touch another's memory.
void SetDevices(int count, bool peers = true);

// What cudaMalloc may give out in all, of each device.
void SetDeviceMemory(size_t bytes);

// The n-th API call from now fails with `error`, the next being the first. A launch failure is
// sticky: the caller's device is lost.
void FailCall(int64_t n, cudaError_t error);

// In the n-th kernel from now its device is lost. 0: none.
void LoseInKernel(int64_t n);

// The n-th kernel from now never ends, nor does any later one of its device. 0: none.
void HangInKernel(int64_t n);

// From now on a thread of its own runs the devices' work, as programs expect of a GPU; without it,
// whoever waits or asks does, in an order that only the seed decides.
void StartDriver();

// What kind of GPU they all are: a name of kernels/emulation/options.h, "sm90" unless told.
void SetGpu(std::string_view name);
void SetGpu(int device, std::string_view name);
// Some whose products are summed in that way.
void SetArchitecture(Architecture architecture);

// How wgmma of a device, or of all, adds otherwise than mma.sync does.
void SetWgmma(const WgmmaSums& sums);
void SetWgmma(int device, const WgmmaSums& sums);

// How the program's streams were made, in that order.
struct StreamFacts {
  unsigned flags;
  int priority;
};
std::vector<StreamFacts> GetStreams();

struct Statistics {
  int64_t kernels = 0;
  int64_t blocks = 0;
  int64_t accesses = 0;  // Loads and stores of kernels outside their own stack.
  int64_t products = 0;  // mma instructions
  int64_t allocations = 0;  // Of devices and pinned.
};
Statistics GetStatistics();

// A kernel with its arguments, taken by value when it was launched.
class KernelCall {
 public:
  virtual ~KernelCall() = default;
  virtual void Run() const = 0;
};

// Puts a launch on a stream; `function` gives the kernel its name in messages. Of a cluster's
// blocks, neighbours in x, there are `cluster`.
cudaError_t Launch(const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, std::unique_ptr<const KernelCall> call, int cluster = 1);

}  // namespace baton::emulation
