#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"

namespace baton {

// A row-major tensor in memory that someone else owns. `bytes` need not be aligned to the
// element: read it with ConvertToF32 or memcpy, never through a cast pointer.
//
// Dense, or with `group` every so many rows (of a vector: elements) followed by rows of others:
// groups begin `group_stride` rows apart.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // From the first element to the last.
  int64_t group = 0;
  int64_t group_stride = 0;

  // False for an optional tensor that the model does not have.
  bool present() const { return bytes.data() != nullptr; }
  int64_t NumElements() const;
  int64_t row_bytes() const;  // Of one of the first extent.
};

// Rows [first, first + count) as dense runs, in their order: all in one of a dense tensor.
std::vector<TensorView> DenseRuns(const TensorView& tensor, int64_t first, int64_t count);

// Rows [first, first + count) of a dense tensor; not present() if it is not.
TensorView RowsOf(const TensorView& tensor, int64_t first, int64_t count);

// The part'th of so many groups' parts: of each `parts * group` rows those from part * group on.
TensorView EveryGroup(const TensorView& tensor, int64_t group, int64_t part, int64_t parts);

// Writes elements [first, first + out.size()) of `tensor` as float, exactly (every f16 and bf16
// value is a float). The range must lie within the tensor, which is dense or a vector.
void ConvertToF32(const TensorView& tensor, int64_t first, std::span<float> out);

}  // namespace baton
