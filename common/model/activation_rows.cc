#include "common/model/activation_rows.h"

#include "absl/strings/str_cat.h"

namespace baton {

int64_t StrideOf(int64_t width, const Device& device) {
  const int64_t unit = device.info().row_alignment;
  return (width + unit - 1) / unit * unit;
}

absl::StatusOr<ActivationRows> AllocateRows(Device& device, int64_t num_rows, int64_t stride,
                                            DType dtype) {
  if (num_rows == 0 || stride == 0) return ActivationRows{.memory = {}, .dtype = dtype};
  // Copies take whole units of 8 bytes.
  const int64_t bytes = (num_rows * stride * SizeOf(dtype) + 7) / 8 * 8;
  absl::StatusOr<Buffer> memory = device.Allocate(bytes, MemoryKind::kDevice);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat("for steps of ", num_rows, " tokens: ",
                                     memory.status().message(), "; lower --chunk-tokens"));
  }
  return ActivationRows{.memory = *std::move(memory), .dtype = dtype};
}

}  // namespace baton
