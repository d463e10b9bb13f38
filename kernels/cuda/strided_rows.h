#pragma once

// Rows of K and V by strides: where an element lies, in whichever layout and type.

#include <cstdint>

#include "kernels/api/attention_args.h"
#include "kernels/api/cache_strides.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda {

// body(T{}) for the C++ type of what lies in a cache.
template <typename Body>
BATON_DEVICE auto WithStoredType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body(F16{});
    case DType::kBF16:
      return body(Bf16{});
    case DType::kFp8E4M3:
      return body(Fp8E4M3{});
    case DType::kFp8E5M2:
      return body(Fp8E5M2{});
    case DType::kF32:
      break;
  }
  return body(float{});
}

BATON_DEVICE float LoadFloat(ConstFloats from, int64_t at) {
  return WithStoredType(from.dtype, [&](auto type) {
    return ToFloat(static_cast<const decltype(type)*>(from.data)[at]);
  });
}

// Rounds to the type.
BATON_DEVICE void StoreFloat(Floats to, int64_t at, float x) {
  WithStoredType(to.dtype, [&](auto type) {
    using T = decltype(type);
    static_cast<T*>(to.data)[at] = FromFloat<T>(x);
  });
}

BATON_DEVICE float RoundedTo(DType dtype, float x) {
  return WithStoredType(dtype, [&](auto type) { return ToFloat(FromFloat<decltype(type)>(x)); });
}

// A plane as kernels take it.
struct StridedPlane {
  CachePlane plane;
  CacheStrides strides;
};

inline StridedPlane StridedPlaneOf(const CachePlane& plane, CacheRole role) {
  return {plane, plane.data == nullptr ? CacheStrides{} : StridesOf(plane, role)};
}

// From the first element of the row of a token and head to element d.
BATON_DEVICE int64_t ElementOf(const CacheStrides& strides, int32_t d) {
  return d / strides.group_dim * strides.group + d % strides.group_dim;
}

// The first element of a row.
BATON_DEVICE int64_t RowOf(const CacheStrides& strides, int64_t block, int64_t head,
                           int64_t token) {
  return block * strides.block + head * strides.head + token * strides.token;
}

// 1 of a plane that is not fp8.
BATON_DEVICE float StoredScaleOf(const CachePlane& plane, int64_t head) {
  if (plane.num_scales == 0) return 1.0f;
  return plane.scales[plane.num_scales == 1 ? 0 : head];
}

// Element `at` of a plane, of that head.
BATON_DEVICE float LoadElement(const StridedPlane& from, int64_t head, int64_t at) {
  return WithStoredType(from.plane.dtype, [&](auto type) {
    using T = decltype(type);
    const float x = ToFloat(reinterpret_cast<const T*>(from.plane.data)[at]);
    return sizeof(T) == 1 ? x * StoredScaleOf(from.plane, head) : x;
  });
}

BATON_DEVICE void StoreElement(const StridedPlane& to, int64_t head, int64_t at, float x) {
  WithStoredType(to.plane.dtype, [&](auto type) {
    using T = decltype(type);
    const float scale = sizeof(T) == 1 ? StoredScaleOf(to.plane, head) : 1.0f;
    reinterpret_cast<T*>(to.plane.data)[at] = ToCache<T>(x, scale);
  });
}

// A table of rotations, a row of it for each position.
struct Rotation {
  const float* cos = nullptr;  // [positions, dim / 2]; null: nothing is rotated.
  const float* sin = nullptr;
  int32_t dim = 0;
  bool interleaved = false;
};

inline Rotation RotationOf(const AttentionWithKvCacheArgs& args) {
  return {args.rotary_cos, args.rotary_sin, args.rotary_cos == nullptr ? 0 : args.rotary_dim,
          args.rotary_interleaved};
}

// Element d of the head that begins at `row`, rotated: as Rope computes it.
BATON_DEVICE float RotatedElement(const Rotation& rotation, int64_t position, ConstFloats x,
                                  int64_t row, int32_t d) {
  const float own = LoadFloat(x, row + d);
  if (d >= rotation.dim) return own;
  const int32_t half = rotation.dim / 2;
  const bool is_first = rotation.interleaved ? d % 2 == 0 : d < half;
  const int32_t pair = rotation.interleaved ? d / 2 : d % half;
  const int32_t step = rotation.interleaved ? 1 : half;
  const float other = LoadFloat(x, row + (is_first ? d + step : d - step));
  const float c = rotation.cos[position * half + pair], s = rotation.sin[position * half + pair];
  return is_first ? fmaf(own, c, 0.0f - other * s) : fmaf(own, c, other * s);
}

// Rows that a sequence has in the cache, before any are appended.
BATON_DEVICE int64_t CacheSeqlenOf(const int32_t* seqlens, int32_t seqlen, int64_t s) {
  return seqlens == nullptr ? seqlen : seqlens[s];
}

}  // namespace baton::cuda
