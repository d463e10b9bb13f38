#pragma once

// Rows of K or V by strides. Internal linkage, as in vec.h.

#include "kernels/api/cache_strides.h"
#include "kernels/cpu/lane_convert.h"

namespace baton {
namespace {

// K or V of one KV head of one sequence.
struct HeadRows {
  const CachePlane* plane = nullptr;
  CacheStrides strides;
  float scale = 1.0f;
  const int32_t* blocks = nullptr;
  int64_t head = 0;
  int64_t first_row = 0;  // Of the sequence's rows in the cache.
  int64_t num_cached = 0;
  const float* dense = nullptr;  // Of the first key after the cached ones.
  int64_t dense_stride = 0;
  int64_t dim = 0;
};

template <DType kType>
inline void LoadCached(const HeadRows& rows, int64_t at, float* to, int64_t stride) {
  const CacheStrides& s = rows.strides;
  for (int64_t first = 0; first < rows.dim; first += s.group_dim, at += s.group) {
    for (int64_t d = 0; d < s.group_dim; ++d) {
      const float x = LoadOne<kType>(rows.plane->data, at + d);
      to[(first + d) * stride] = IsFp8(kType) ? x * rows.scale : x;
    }
  }
}

// to[d * stride] = element d of key `key`.
inline void LoadRow(const HeadRows& rows, int64_t key, float* to, int64_t stride) {
  if (key >= rows.num_cached) {
    const float* from = rows.dense + (key - rows.num_cached) * rows.dense_stride;
    for (int64_t d = 0; d < rows.dim; ++d) to[d * stride] = from[d];
    return;
  }
  const int64_t row = rows.first_row + key;
  const int64_t size = rows.plane->block_size;
  const int64_t at = rows.strides.At(rows.blocks[row / size], rows.head, row % size);
  switch (rows.plane->dtype) {
    case DType::kF32:
      return LoadCached<DType::kF32>(rows, at, to, stride);
    case DType::kF16:
      return LoadCached<DType::kF16>(rows, at, to, stride);
    case DType::kBF16:
      return LoadCached<DType::kBF16>(rows, at, to, stride);
    case DType::kFp8E4M3:
      return LoadCached<DType::kFp8E4M3>(rows, at, to, stride);
    case DType::kFp8E5M2:
      return LoadCached<DType::kFp8E5M2>(rows, at, to, stride);
  }
}

// Whose K or V `plane` holds for one KV head; where they lie is left to the caller.
inline HeadRows RowsOfPlane(const CachePlane& plane, CacheRole role, int64_t kv_head) {
  HeadRows rows{.plane = &plane, .strides = StridesOf(plane, role), .head = kv_head};
  if (plane.num_scales > 0) rows.scale = plane.scales[plane.num_scales == 1 ? 0 : kv_head];
  rows.dim = plane.dim;
  return rows;
}

}  // namespace
}  // namespace baton
