#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/device.h"
#include "kernels/api/gpu_report.h"
#include "kernels/api/model_ops.h"
#include "kernels/cpu/cpu_kernels.h"

namespace baton {

struct DeviceOptions {
  // "auto": the fastest on this family of CPUs. "x86_64_amx", "x86_64_v4_bf16", "x86_64_v4",
  // "x86_64_v3" or "portable" force a CPU kernel set.
  std::string kernels = "auto";
  // "cpu", "cuda" (GPU 0) or "cuda:N", or "auto": the GPU where this build and machine have one.
  std::string device = "cpu";
  int num_threads = 1;  // In [1, 1024], with the caller's.
  int nice = 0;         // Added to the niceness of threads that the device starts, [0, 19].
};

// The operators of this machine's CPU. INVALID_ARGUMENT names the option.
absl::StatusOr<std::unique_ptr<CpuKernels>> MakeCpuKernels(const DeviceOptions& options);

// What computes steps, and the CPU beside it, which may be what it is made of.
struct Processors {
  std::unique_ptr<ModelOps> host;
  std::unique_ptr<Device> device;
  std::string why_no_gpu;  // Where "auto" took the CPU.
};
absl::StatusOr<Processors> MakeDevice(const DeviceOptions& options);

// Of so many threads those of one rank of a group: they are shared out, with at least one for each.
int ThreadsOfRank(int num_threads, int rank, int size);

// Those of a group of ranks, all of one kind. GPUs are those from the chosen one on; the status
// says so where there are too few.
absl::StatusOr<std::vector<Processors>> MakeRanks(const DeviceOptions& options, int size);

// The GPUs of this machine, as this build sees them, and what "auto" would take.
GpuReport ListGpus();

}  // namespace baton
