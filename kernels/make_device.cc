#include "kernels/make_device.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/select_kernel_set.h"

namespace baton {

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
  made.device = std::make_unique<CpuDevice>(made.host.get());
  return made;
}

}  // namespace baton
