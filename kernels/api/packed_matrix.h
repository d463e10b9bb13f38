#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/dtype.h"

namespace baton {

// Part of a weight matrix as a file holds it: rows [num_rows, k], row-major, any alignment.
struct WeightRows {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0;
};

// A weight matrix [n, k] in the order that the matrix product reads: panels of 32 rows, each
// [k][32], or for bf16 [k / 2][32][2]: two neighbours of a row side by side, as bf16 dot
// products take them. Rows are filled up to whole panels and k of bf16 to an even number, with zeros. The
// elements keep the dtype they had on disk. Owns its memory; made by Kernels::PackWeights,
// immutable afterwards.
class PackedMatrix {
 public:
  static constexpr int64_t kPanelRows = 32;

  PackedMatrix() = default;
  PackedMatrix(int64_t n, int64_t k, DType dtype)
      : n_(n), k_(k), dtype_(dtype), data_(Allocate(size_bytes())) {}

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  int64_t num_panels() const { return (n_ + kPanelRows - 1) / kPanelRows; }
  int64_t padded_k() const { return dtype_ == DType::kBF16 ? (k_ + 1) / 2 * 2 : k_; }
  int64_t panel_bytes() const { return padded_k() * kPanelRows * SizeOf(dtype_); }
  int64_t size_bytes() const { return num_panels() * panel_bytes(); }

  // Elements from the start of the data to (row, column).
  int64_t IndexOf(int64_t row, int64_t column) const {
    const int64_t panel = row / kPanelRows * padded_k() * kPanelRows;
    if (dtype_ != DType::kBF16) return panel + column * kPanelRows + row % kPanelRows;
    return panel + (column / 2 * kPanelRows + row % kPanelRows) * 2 + column % 2;
  }

  // Null when empty or when the memory could not be had. 64-byte aligned.
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  static std::byte* Allocate(int64_t bytes);

  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace baton
