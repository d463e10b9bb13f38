#pragma once

#include <string>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace baton {

// The index formulas of the systems that the layouts come from, in elements from the start of a
// dense block: an oracle that shares no code with the operators.
inline int64_t IndexInBlock(CacheLayout layout, bool is_key, int64_t heads, int64_t block_size,
                            int64_t dim, int64_t x, int64_t h, int64_t t, int64_t d) {
  if (layout == CacheLayout::kHnd) return (h * block_size + t) * dim + d;
  if (layout == CacheLayout::kNhd) return (t * heads + h) * dim + d;
  if (!is_key) return (h * dim + d) * block_size + t;
  return ((h * (dim / x) + d / x) * block_size + t) * x + d % x;
}

struct CacheShape {
  CacheLayout layout = CacheLayout::kHnd;
  DType dtype = DType::kF32;
  bool is_key = true;  // Else the V plane.
  int64_t num_blocks = 4;
  int32_t heads = 3;
  int32_t block_size = 4;
  int32_t dim = 16;
  int64_t gap = 0;      // Elements between blocks that belong to nobody.
  int64_t row_gap = 0;  // Between rows of dim elements; not in PACKED.
};

// A plane in memory of its own, every byte random, also in the gaps.
class TestCache {
 public:
  TestCache(const CacheShape& shape, uint64_t seed) : shape_(shape) {
    plane_ = {.dtype = shape.dtype,
              .layout = shape.layout,
              .num_blocks = shape.num_blocks,
              .num_heads = shape.heads,
              .block_size = shape.block_size,
              .dim = shape.dim,
              .block_stride = int64_t{shape.heads} * shape.block_size * RowSize() + shape.gap};
    if (shape.row_gap > 0) {
      const bool by_head = shape.layout == CacheLayout::kHnd;
      plane_.token_stride = by_head ? RowSize() : shape.heads * RowSize();
      plane_.head_stride = by_head ? shape.block_size * RowSize() : RowSize();
    }
    Random random(seed);
    bytes_.resize(plane_.num_blocks * plane_.block_stride * SizeOf(shape.dtype));
    for (std::byte& b : bytes_) b = static_cast<std::byte>(random.Next());
  }

  CachePlane plane() const {
    CachePlane plane = plane_;
    plane.data = const_cast<std::byte*>(bytes_.data());
    return plane;
  }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const CacheShape& shape() const { return shape_; }

  // Of one element.
  std::byte* At(int64_t block, int64_t h, int64_t t, int64_t d) {
    const int64_t size = SizeOf(shape_.dtype);
    // With row gaps a row is longer, and its elements still lie together.
    const int64_t in_block = IndexInBlock(shape_.layout, shape_.is_key, shape_.heads,
                                          shape_.block_size, RowSize(), 16 / size, h, t, d);
    return &bytes_[(block * plane_.block_stride + in_block) * size];
  }

  // A head of a block takes the elements of another one; the expectation of every copy.
  void SetHead(int64_t block, int64_t h, TestCache& from, int64_t from_block, int64_t from_h) {
    for (int64_t t = 0; t < shape_.block_size; ++t) {
      for (int64_t d = 0; d < shape_.dim; ++d) {
        std::memcpy(At(block, h, t, d), from.At(from_block, from_h, t, d), SizeOf(shape_.dtype));
      }
    }
  }

 private:
  int64_t RowSize() const { return shape_.dim + shape_.row_gap; }

  CacheShape shape_;
  CachePlane plane_;
  std::vector<std::byte> bytes_;
};

inline const char* NameOf(CacheLayout layout) {
  return layout == CacheLayout::kHnd ? "HND" : layout == CacheLayout::kNhd ? "NHD" : "PACKED";
}

// Every layout and dtype, dense and with gaps.
inline std::vector<CacheShape> CacheShapes() {
  std::vector<CacheShape> shapes;
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const DType dtype :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3, DType::kFp8E5M2}) {
      for (const int64_t gap : {0, 7}) {
        for (const int64_t row_gap : {0, 5}) {
          if (layout == CacheLayout::kPacked && row_gap > 0) continue;
          shapes.push_back({.layout = layout, .dtype = dtype, .gap = gap, .row_gap = row_gap});
        }
      }
    }
  }
  return shapes;
}

inline std::string Describe(const CacheShape& s) {
  return std::string(NameOf(s.layout)) + " " + std::string(ToString(s.dtype)) + " gap " +
         std::to_string(s.gap) + " row gap " + std::to_string(s.row_gap);
}

}  // namespace baton
