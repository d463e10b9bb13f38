#pragma once

#include <cstdint>

#include "kernels/api/operands.h"

namespace baton {

// Says of a position that its rotation has the other frequencies; its own inverse.
constexpr int32_t OtherRotation(int32_t position) { return -1 - position; }

// The rotation of each position: the angle is rounded to float as transformers does, cosine and
// sine are those of portable_math, rounded to float, then scaled. Positions are below
// 2^20 / max(inv_freq).
struct RotaryTableArgs {
  const int32_t* positions = nullptr;  // [num_tokens]; OtherRotation(p) is p by the others.
  int64_t num_tokens = 0;
  const float* inv_freq = nullptr;        // [half]
  const float* other_inv_freq = nullptr;  // [half]; null: no position asks for it.
  int64_t half = 0;
  float attention_scaling = 1;
  float* cos = nullptr;  // [num_tokens, half], dense
  float* sin = nullptr;  // [num_tokens, half], dense
};

// to[i] = from[rows[i]], rows of one dtype. `to` shares no byte with `from`.
struct SelectRowsArgs {
  ConstFloats from;         // [> each of rows, dim]
  int64_t from_stride = 0;  // Elements from row to row.
  const int32_t* rows = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  int64_t dim = 0;
  Floats to;  // [num_rows, dim]
  int64_t to_stride = 0;
};

}  // namespace baton
