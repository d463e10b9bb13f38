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

// The same for any plane, in elements from its start.
inline int64_t OffsetOf(const CachePlane& p, bool is_key, int64_t block, int64_t h, int64_t t,
                        int64_t d) {
  const int64_t base = block * p.block_stride;
  if (p.head_stride == 0 && p.token_stride == 0) {
    return base + IndexInBlock(p.layout, is_key, p.num_heads, p.block_size, p.dim,
                               16 / SizeOf(p.dtype), h, t, d);
  }
  const bool by_head = p.layout == CacheLayout::kHnd;
  const int64_t inner = by_head ? p.token_stride : p.head_stride;
  const int64_t row = inner == 0 ? p.dim : inner;
  const int64_t outer = by_head ? p.head_stride : p.token_stride;
  const int64_t rows = (by_head ? p.block_size : p.num_heads) * row;
  return base + (by_head ? h : t) * (outer == 0 ? rows : outer) + (by_head ? t : h) * row + d;
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
    return &bytes_[OffsetOf(plane_, shape_.is_key, block, h, t, d) * SizeOf(shape_.dtype)];
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
