#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/dtype.h"
#include "kernels/api/packed_matrix.h"

namespace baton {

// The order in which matrix products on a CPU read a PackedMatrix: panels of 32 rows, each
// [k][32], or for bf16 [k / 2][32][2]: two neighbours of a row side by side, as bf16 dot products
// take them. Rows are filled up to whole panels and k of bf16 to an even number, with zeros. The
// elements keep the dtype they had on disk. Borrowed.
class Panels {
 public:
  static constexpr int64_t kRows = 32;

  Panels() = default;
  Panels(int64_t n, int64_t k, DType dtype)
      : n_(n), k_(k), dtype_(dtype), panel_stride_(panel_bytes()) {}
  explicit Panels(const PackedMatrix& weights) : Panels(weights.n(), weights.k(), weights.dtype()) {
    data_ = weights.data();
    BATON_CHECK(weights.format() == WeightFormat::kCpuPanels);
  }

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  std::byte* data() const { return data_; }  // 64-byte aligned.
  int64_t num_panels() const { return (n_ + kRows - 1) / kRows; }
  int64_t padded_k() const { return dtype_ == DType::kBF16 ? (k_ + 1) / 2 * 2 : k_; }
  int64_t panel_bytes() const { return padded_k() * kRows * SizeOf(dtype_); }
  int64_t panel_stride() const { return panel_stride_; }  // Bytes from panel to panel.
  int64_t size_bytes() const { return num_panels() * panel_bytes(); }

  // Rows [first, first + count), from the beginning of a panel on.
  Panels Rows(int64_t first, int64_t count) const {
    Panels rows = *this;
    rows.n_ = count;
    rows.data_ += first / kRows * panel_stride_;
    return rows;
  }
  // Columns [first, first + count), from an even one on; in each panel they lie in a row.
  Panels Columns(int64_t first, int64_t count) const {
    Panels columns = *this;
    columns.k_ = count;
    columns.data_ += first * kRows * SizeOf(dtype_);
    return columns;
  }

  // Elements from the start of the data to (row, column), of a whole matrix.
  int64_t IndexOf(int64_t row, int64_t column) const {
    const int64_t panel = row / kRows * padded_k() * kRows;
    if (dtype_ != DType::kBF16) return panel + column * kRows + row % kRows;
    return panel + (column / 2 * kRows + row % kRows) * 2 + column % 2;
  }

 private:
  int64_t n_ = 0;
  int64_t k_ = 0;
  DType dtype_ = DType::kF32;
  int64_t panel_stride_ = 0;
  std::byte* data_ = nullptr;
};

// A matrix with room for its panels, not yet written. RESOURCE_EXHAUSTED names the size.
inline absl::StatusOr<PackedMatrix> AllocatePanels(int64_t n, int64_t k, DType dtype) {
  absl::StatusOr<Buffer> memory = AllocateHost(Panels(n, k, dtype).size_bytes());
  if (!memory.ok()) return memory.status();
  return PackedMatrix(n, k, dtype, WeightFormat::kCpuPanels, *std::move(memory));
}

}  // namespace baton
