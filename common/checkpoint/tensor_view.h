#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"

namespace baton {

// A dense row-major tensor in memory that someone else owns. `bytes` need not be aligned to the
// element: read it with ConvertToF32 or memcpy, never through a cast pointer.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // Exactly product(shape) * SizeOf(dtype).

  // False for an optional tensor that the model does not have.
  bool present() const { return bytes.data() != nullptr; }
  int64_t NumElements() const { return static_cast<int64_t>(bytes.size()) / SizeOf(dtype); }
};

// Writes elements [first, first + out.size()) of `tensor` as float, exactly (every f16 and bf16
// value is a float). The range must lie within the tensor.
void ConvertToF32(const TensorView& tensor, int64_t first, std::span<float> out);

}  // namespace baton
