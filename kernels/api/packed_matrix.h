#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/dtype.h"
#include "kernels/api/buffer.h"

namespace baton {

// Part of a weight matrix as a file holds it: rows [num_rows, k], row-major, any alignment.
struct WeightRows {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0;
  int64_t row_stride = 0;  // Elements from row to row, of which the first k are meant; 0: k.

  const std::byte* Row(int64_t row, int64_t k) const {
    return data + row * (row_stride == 0 ? k : row_stride) * SizeOf(dtype);
  }
};

// Who can read a packed matrix.
enum class WeightFormat : uint8_t { kNone, kCpuPanels, kCuda };

// A weight matrix [n, k] in the order that its device's matrix product reads, which nobody else
// knows. Owns its memory; made by the device, immutable afterwards.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(int64_t n, int64_t k, DType dtype, WeightFormat format, Buffer memory)
      : n_(n), k_(k), dtype_(dtype), format_(format), memory_(std::move(memory)) {}

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  WeightFormat format() const { return format_; }
  int64_t size_bytes() const { return memory_.size_bytes(); }
  std::byte* data() const { return memory_.data(); }  // Null when empty.

 private:
  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  WeightFormat format_ = WeightFormat::kNone;
  Buffer memory_;
};

}  // namespace baton
