#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "common/base/dtype.h"

namespace baton {

// Part of a weight matrix as a file holds it: rows [num_rows, k], row-major, any alignment.
struct WeightRows {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0;
};

// A weight matrix [n, k] in the order that the matrix product reads: panels of 16 rows, each
// [k][16], the last one filled up with zero rows. The elements keep the dtype they had on disk.
// Owns its memory; made by Kernels::PackWeights, immutable afterwards.
class PackedMatrix {
 public:
  static constexpr int64_t kPanelRows = 16;

  PackedMatrix() = default;
  PackedMatrix(int64_t n, int64_t k, DType dtype)
      : n_(n), k_(k), dtype_(dtype), data_(Allocate(SizeBytes(n, k, dtype))) {}

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  int64_t num_panels() const { return (n_ + kPanelRows - 1) / kPanelRows; }

  // Null when empty or when the memory could not be had. 64-byte aligned.
  std::byte* data() const { return data_.get(); }

  static int64_t SizeBytes(int64_t n, int64_t k, DType dtype) {
    return (n + kPanelRows - 1) / kPanelRows * kPanelRows * k * SizeOf(dtype);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  static std::byte* Allocate(int64_t bytes) {
    const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    return static_cast<std::byte*>(std::aligned_alloc(64, rounded));
  }

  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace baton
