#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/device.h"

namespace baton {

// Numbers of a pass, a row for each token, which each pass overwrites before it reads them.
struct ActivationRows {
  Buffer memory;
  DType dtype = DType::kF32;
  Floats data() const { return memory.floats(dtype); }
};

// Elements from row to row of activations of that width on the device.
int64_t StrideOf(int64_t width, const Device& device);

// In the device's memory; of no rows or elements empty. RESOURCE_EXHAUSTED when it cannot be had.
absl::StatusOr<ActivationRows> AllocateRows(Device& device, int64_t num_rows, int64_t stride,
                                            DType dtype);

}  // namespace baton
