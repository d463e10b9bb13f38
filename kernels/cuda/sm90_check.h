#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/dialect.h"

// The forms that sm_90a has are allowed because their bits are those of the forms for every GPU:
// as published, Hopper's wgmma adds as its mma.sync does. A GPU shows whether it does so when it is
// opened, or else computes by the forms for every GPU, which need nothing but mma.sync.
namespace baton::cuda {

// Where the check works, on the thread's device and a stream of it.
struct CheckRoom {
  const Buffer& memory;  // At least kSm90CheckBytes, which are all 0xff afterwards.
  cudaStream_t stream;
  absl::FunctionRef<absl::Status()> wait;  // Until all work of the stream has ended.
};
inline constexpr int64_t kSm90CheckBytes = int64_t{1} << 20;

// By both forms products that are hard to add up: of operands in shared memory and in registers,
// both types, numbers of widely different size, subnormals, sums that cancel within a step of k and
// over steps. What differs, for a line of a log; empty: nothing.
absl::StatusOr<std::string> CompareSm90Forms(const CheckRoom& room);

// The same once for each device of a process, which takes the forms for every GPU from then on if
// they differ (sm90_forms.h); empty where it is no sm_90. `device` is the thread's. An error
// decides nothing: who opens the device next compares again. From any thread; of several that open
// one device one compares, and the others wait for it.
absl::StatusOr<std::string> CheckSm90Forms(int device, const CheckRoom& room);

}  // namespace baton::cuda
