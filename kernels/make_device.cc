#include "kernels/make_device.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/select_kernel_set.h"
#if defined(BATON_CUDA)
#include "kernels/cuda/cuda_device.h"
#endif
#if defined(BATON_EMULATED_CUDA)
#include "kernels/emulation/emulator.h"
#endif

namespace baton {
namespace {

absl::StatusOr<std::unique_ptr<Device>> MakeGpu(int index) {
#if defined(BATON_EMULATED_CUDA)
  emulation::StartDriver();
#endif
#if defined(BATON_CUDA)
  return MakeCudaDevice(index);
#else
  return absl::InvalidArgumentError(
      absl::StrCat("device = cuda:", index, ": this build is for CPUs alone: build the preset cuda"));
#endif
}

// An emulated GPU is for those who ask for it.
absl::StatusOr<std::unique_ptr<Device>> FindGpu() {
#if defined(BATON_EMULATED_CUDA)
  return absl::NotFoundError("the GPU is emulated");
#else
  return MakeGpu(0);
#endif
}

// There is no GPU that could be used; otherwise there is one, and something is wrong with it.
bool IsAbsent(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsFailedPrecondition(status);
}

absl::StatusOr<int> GpuIndex(const std::string& device) {
  if (device == "cuda") return 0;
  int index = 0;
  constexpr absl::string_view kPrefix = "cuda:";
  if (absl::StartsWith(device, kPrefix) &&
      absl::SimpleAtoi(absl::string_view(device).substr(kPrefix.size()), &index)) {
    return index;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device = ", device, ": must be auto, cpu, cuda or cuda:N"));
}

}  // namespace


absl::StatusOr<std::unique_ptr<Kernels>> MakeKernels(const DeviceOptions& options) {
  if (options.num_threads < 1 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads = ", options.num_threads, ": must be in [1, 1024]"));
  }
  if (options.nice < 0 || options.nice > 19) {
    return absl::InvalidArgumentError(
        absl::StrCat("nice = ", options.nice, ": must be in [0, 19]"));
  }
  ASSIGN_OR_RETURN(const KernelSet* set, SelectKernelSet(options.kernels));
  return std::make_unique<CpuKernels>(set, options.num_threads, options.nice);
}

absl::StatusOr<Processors> MakeDevice(const DeviceOptions& options) {
  Processors made;
  ASSIGN_OR_RETURN(made.host, MakeKernels(options));
  if (options.device == "auto") {
    absl::StatusOr<std::unique_ptr<Device>> gpu = FindGpu();
    if (!gpu.ok() && !IsAbsent(gpu.status())) return gpu.status();
    if (gpu.ok()) made.device = *std::move(gpu);
  } else if (options.device != "cpu") {
    ASSIGN_OR_RETURN(const int index, GpuIndex(options.device));
    ASSIGN_OR_RETURN(made.device, MakeGpu(index));
  }
  if (made.device == nullptr) made.device = std::make_unique<CpuDevice>(made.host.get());
  return made;
}

}  // namespace baton
