#pragma once

#include <cstdint>
#include <type_traits>

#include "common/base/dtype.h"
#include "kernels/api/operands.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/floats.h"

namespace baton::cuda {

// body(T{}) for the C++ type of a dtype. cudaErrorInvalidValue for fp8, which only caches hold.
template <typename Body>
cudaError_t WithFloatType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF16:
      return body(F16{});
    case DType::kBF16:
      return body(Bf16{});
    default:
      return cudaErrorInvalidValue;
  }
}

// body(In{}, Out{}) for what is read and what is written. Two half types at once are refused: a
// model computes in one of them.
template <typename Body>
cudaError_t WithFloatTypes(DType in, DType out, const Body& body) {
  return WithFloatType(in, [&](auto x) {
    return WithFloatType(out, [&](auto y) {
      using In = decltype(x);
      using Out = decltype(y);
      if constexpr (std::is_same_v<In, Out> || std::is_same_v<In, float> ||
                    std::is_same_v<Out, float>) {
        return body(x, y);
      } else {
        return cudaErrorInvalidValue;
      }
    });
  });
}

// Whether four elements at a time can be loaded from each row.
inline bool HasVectors(const void* data, DType dtype, int64_t dim, int64_t stride) {
  const int64_t bytes = 4 * SizeOf(dtype);
  return dim % 4 == 0 && stride % 4 == 0 && reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// In one dimension of a grid, which no device takes where they are more than it has: fewer blocks
// would leave items out without a word.
inline unsigned BlocksFor(int64_t items, int64_t per_block) {
  const int64_t blocks = (items + per_block - 1) / per_block;
  return blocks > INT32_MAX ? UINT32_MAX : static_cast<unsigned>(blocks);
}

// Rounds to the cache's type. fp8: of x / scale, but for a NaN, whose sign a GPU's division drops.
template <typename Cache>
BATON_DEVICE Cache ToCache(float x, float scale) {
  if constexpr (sizeof(Cache) == 1) x = x == x ? x / scale : x;
  return FromFloat<Cache>(x);
}

// Four neighbours of a row as floats, of which `valid` exist; the others are 0. `vectors`: all four
// exist and are aligned to their common size.
template <typename T>
BATON_DEVICE void LoadFour(const T* row, int64_t valid, bool vectors, float (&out)[4]) {
  if (vectors) {
    using Vector = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    const Vector raw = *reinterpret_cast<const Vector*>(row);
    T values[4];
    memcpy(values, &raw, sizeof(raw));
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = ToFloat(values[i]);
  } else {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = i < valid ? ToFloat(row[i]) : 0.0f;
  }
}

template <typename T>
BATON_DEVICE void StoreFour(T* row, int64_t valid, bool vectors, const float (&in)[4]) {
  if (vectors) {
    using Vector = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    T values[4];
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) values[i] = FromFloat<T>(in[i]);
    Vector raw;
    memcpy(&raw, values, sizeof(raw));
    *reinterpret_cast<Vector*>(row) = raw;
  } else {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < valid) row[i] = FromFloat<T>(in[i]);
    }
  }
}

}  // namespace baton::cuda
