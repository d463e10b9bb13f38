#include "kernels/make_device.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/select_kernel_set.h"
#if defined(BATON_CUDA)
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_gpus.h"
#endif
#if defined(BATON_EMULATED_CUDA)
#include "kernels/emulation/emulator.h"
#endif

namespace baton {
namespace {

// Why `auto` takes no GPU in this build, wherever it runs; empty: it takes one that it finds.
#if defined(BATON_EMULATED_CUDA)
constexpr char kBuild[] = "emulated";
constexpr char kAutoIsCpu[] = "the GPU is emulated, and --device cuda asks for it";
#elif defined(BATON_CUDA)
constexpr char kBuild[] = "cuda";
constexpr char kAutoIsCpu[] = "";
#else
constexpr char kBuild[] = "cpu";
constexpr char kAutoIsCpu[] = "this build is for CPUs alone: build the preset cuda";
#endif

void StartGpus() {
#if defined(BATON_EMULATED_CUDA)
  emulation::StartDriver();
#endif
}

absl::StatusOr<std::unique_ptr<Device>> MakeGpu(int index) {
  StartGpus();
#if defined(BATON_CUDA)
  return MakeCudaDevice(index);
#else
  return absl::InvalidArgumentError(absl::StrCat("device = cuda:", index, ": ", kAutoIsCpu));
#endif
}

int CountGpus() {
  StartGpus();
#if defined(BATON_CUDA)
  return CountCudaGpus();
#else
  return 0;
#endif
}

absl::StatusOr<std::unique_ptr<Device>> FindGpu() {
  if (*kAutoIsCpu != 0) return absl::NotFoundError(kAutoIsCpu);
  return MakeGpu(0);
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

// The GPUs from `first` on are enough for the group.
absl::Status CheckGpus(int first, int size) {
  const int count = CountGpus();
  if (first + size <= count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tp = ", size, ": each rank takes a GPU of its own, from cuda:", first, " on, and there ",
      count == 1 ? "is " : "are ", count, "; on the CPU all share its cores, --device cpu"));
}

absl::Status CheckThreads(int num_threads) {
  if (num_threads >= 1 && num_threads <= 1024) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("threads = ", num_threads, ": must be in [1, 1024]"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuKernels>> MakeCpuKernels(const DeviceOptions& options) {
  RETURN_IF_ERROR(CheckThreads(options.num_threads));
  if (options.nice < 0 || options.nice > 19) {
    return absl::InvalidArgumentError(
        absl::StrCat("nice = ", options.nice, ": must be in [0, 19]"));
  }
  ASSIGN_OR_RETURN(const KernelSet* set, SelectKernelSet(options.kernels));
  return std::make_unique<CpuKernels>(set, options.num_threads, options.nice);
}

absl::StatusOr<Processors> MakeDevice(const DeviceOptions& options) {
  Processors made;
  ASSIGN_OR_RETURN(std::unique_ptr<CpuKernels> cpu, MakeCpuKernels(options));
  if (options.device == "auto") {
    absl::StatusOr<std::unique_ptr<Device>> gpu = FindGpu();
    if (gpu.ok()) {
      made.device = *std::move(gpu);
    } else if (HasNoGpu(gpu.status())) {
      made.why_no_gpu = std::string(gpu.status().message());
    } else {
      return gpu.status();
    }
  } else if (options.device != "cpu") {
    ASSIGN_OR_RETURN(const int index, GpuIndex(options.device));
    ASSIGN_OR_RETURN(made.device, MakeGpu(index));
  }
  if (made.device == nullptr) made.device = std::make_unique<CpuDevice>(cpu.get());
  made.host = std::move(cpu);
  return made;
}

int ThreadsOfRank(int num_threads, int rank, int size) {
  return std::max(1, (num_threads + size - 1 - rank) / size);
}

absl::StatusOr<std::vector<Processors>> MakeRanks(const DeviceOptions& options, int size) {
  RETURN_IF_ERROR(CheckThreads(options.num_threads));  // Of all ranks; each has at least one.
  std::vector<Processors> ranks;
  DeviceOptions one = options;
  for (int r = 0; r < size; ++r) {
    one.num_threads = ThreadsOfRank(options.num_threads, r, size);
    ASSIGN_OR_RETURN(ranks.emplace_back(), MakeDevice(one));
    if (ranks[0].device->info().unified) {
      one.device = "cpu";  // "auto" finds no other for the rest.
    } else {
      ASSIGN_OR_RETURN(const int first,
                       GpuIndex(options.device == "auto" ? "cuda" : options.device));
      if (r == 0 && size > 1) RETURN_IF_ERROR(CheckGpus(first, size));
      one.device = absl::StrCat("cuda:", first + r + 1);
    }
  }
  return ranks;
}

GpuReport ListGpus() {
  StartGpus();
  GpuReport report;
#if defined(BATON_CUDA)
  report = ListCudaGpus();
#else
  report.problem = kAutoIsCpu;
#endif
  report.build = kBuild;
  ChooseForAuto(kAutoIsCpu, report);
  return report;
}

}  // namespace baton
