#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/api/gpu_report.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// Of a GPU that Baton can compute on. The error is one line with its cure: no driver or one too
// old, no such GPU, one before sm_80.
absl::StatusOr<cudaDeviceProp> PropertiesOf(int index);

// The error of a GPU that is there and does not work: one that is full, say.
absl::Status CannotOpen(int index, absl::string_view name, const absl::Status& status);

}  // namespace baton::cuda

namespace baton {

// 0 where there is no driver that works. Opens none of them: a process takes memory of each GPU
// that it has opened.
int CountCudaGpus();

// Driver, problem and GPUs. It takes a little memory of each GPU, until the process ends.
GpuReport ListCudaGpus();

}  // namespace baton
