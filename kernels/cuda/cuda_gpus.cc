#include "kernels/cuda/cuda_gpus.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace baton::cuda {
namespace {

std::string VersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// 0: there is no driver. CUDA's first call: before it starts it is told to load all kernels then,
// not each at its first launch, amid a step or a capture, which would take memory and time there.
int DriverVersion() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

absl::Status RequireDriver() {
  const int driver = DriverVersion();
  if (driver == 0) {
    return absl::FailedPreconditionError(
        "no NVIDIA driver: install one that knows CUDA 13 (580 or later), or use --device cpu");
  }
  int runtime = 0;
  RETURN_IF_ERROR(ToStatus(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"));
  // Within a major version any driver runs any program.
  if (driver / 1000 >= runtime / 1000) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the NVIDIA driver knows CUDA ", VersionName(driver), ", and CUDA ",
                   runtime / 1000, " is needed: update it, or use --device cpu"));
}

absl::StatusOr<int> CountGpus() {
  RETURN_IF_ERROR(RequireDriver());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return absl::FailedPreconditionError(
        "the NVIDIA driver shows no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device "
        "cpu");
  }
  // There may be GPUs, which is what somebody has to look after.
  return absl::UnavailableError(
      absl::StrCat("the NVIDIA driver does not work (error ", static_cast<int>(error), ", ",
                   cudaGetErrorString(error),
                   "): see nvidia-smi and the kernel's log, or use --device cpu"));
}

std::string ArchitectureName(const cudaDeviceProp& properties) {
  return absl::StrCat("sm_", properties.major, properties.minor);
}

absl::Status RequireArchitecture(int index, const cudaDeviceProp& properties) {
  if (properties.major >= 8) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("device = cuda:", index, ": ", properties.name, " is ",
                   ArchitectureName(properties), ", and sm_80 is needed: use --device cpu"));
}

GpuFacts FactsOf(int index) {
  GpuFacts facts{.index = index};
  cudaDeviceProp properties;
  absl::Status status =
      ToStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  if (status.ok()) {
    facts.name = properties.name;
    facts.architecture = ArchitectureName(properties);
    facts.memory_total = static_cast<int64_t>(properties.totalGlobalMem);
    status = RequireArchitecture(index, properties);
    facts.too_old = !status.ok();
  }
  size_t free = 0, total = 0;
  if (status.ok()) status = ToStatus(cudaSetDevice(index), "cudaSetDevice");
  if (status.ok()) status = ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (total > 0) facts.memory_total = static_cast<int64_t>(total);
  facts.memory_free = static_cast<int64_t>(free);
  if (!status.ok() && !facts.too_old) status = CannotOpen(index, facts.name, status);
  facts.unusable = std::string(status.message());
  return facts;
}

}  // namespace

absl::Status CannotOpen(int index, absl::string_view name, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("device = cuda:", index, ": ", name, ": ", status.message(),
                   ": see nvidia-smi for who holds it, or take another GPU or --device cpu"));
}

absl::StatusOr<cudaDeviceProp> PropertiesOf(int index) {
  ASSIGN_OR_RETURN(const int count, CountGpus());
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(absl::StrCat("device = cuda:", index, ": must be below ",
                                                   count, ", the number of GPUs here"));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  RETURN_IF_ERROR(RequireArchitecture(index, properties));
  return properties;
}

}  // namespace baton::cuda

namespace baton {

int CountCudaGpus() { return cuda::CountGpus().value_or(0); }

GpuReport ListCudaGpus() {
  GpuReport report;
  const int driver = cuda::DriverVersion();
  if (driver != 0) report.driver = cuda::VersionName(driver);
  const absl::StatusOr<int> count = cuda::CountGpus();
  report.problem = std::string(count.status().message());
  report.broken = !count.ok() && !HasNoGpu(count.status());
  for (int i = 0; i < count.value_or(0); ++i) report.gpus.push_back(cuda::FactsOf(i));
  return report;
}

}  // namespace baton
