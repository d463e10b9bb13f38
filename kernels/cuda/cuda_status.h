#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// What CUDA said of a call: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, or else UNAVAILABLE: the device
// is lost, for errors of kernels stay.
absl::Status ToStatus(cudaError_t error, absl::string_view call);

}  // namespace baton::cuda
