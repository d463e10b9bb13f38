#include "kernels/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace baton::cuda {

absl::Status ToStatus(cudaError_t error, absl::string_view call) {
  switch (error) {
    case cudaSuccess:
      return absl::OkStatus();
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return absl::InvalidArgumentError(
          absl::StrCat(call, ": the GPU does not take these types, sizes or strides: a bug of this "
                       "build; --device cpu serves the model meanwhile"));
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(absl::StrCat(call, ": out of GPU memory"));
    default:
      return absl::UnavailableError(
          absl::StrCat("the GPU is lost: ", call, ": ", cudaGetErrorString(error)));
  }
}

}  // namespace baton::cuda
