#pragma once

#include <cstdint>

#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"

namespace baton {

// Operators that a layer calls one behind the other, as one: with the bits of the ones after the
// others. What lies between them is undefined afterwards, for a device need not write it.

// Rope of q and of new keys, then ReshapeAndCache. Between them: key, rotated.
struct RopeAndCacheArgs {
  Floats q;              // [num_tokens, num_heads, k_cache.dim], rotated in place; null: none.
  int64_t q_stride = 0;  // Elements from token to token.
  int64_t num_heads = 0;
  Floats key;  // [num_tokens, k_cache.num_heads, k_cache.dim]
  int64_t key_stride = 0;
  ConstFloats value;  // [num_tokens, k_cache.num_heads, v_cache.dim]
  int64_t value_stride = 0;
  int64_t num_tokens = 0;
  int64_t rotary_dim = 0;                 // As of RopeArgs; 0: nothing is rotated.
  const float* cos = nullptr;             // [num_tokens, rotary_dim / 2]
  const float* sin = nullptr;             // [num_tokens, rotary_dim / 2]
  const int64_t* slot_mapping = nullptr;  // As of ReshapeAndCacheArgs.
  CachePlane k_cache;
  CachePlane v_cache;

  RopeArgs RopeOfQ() const { return RopeOf(q, q_stride, num_heads); }
  RopeArgs RopeOfKey() const { return RopeOf(key, key_stride, k_cache.num_heads); }
  ReshapeAndCacheArgs Write() const {
    return {.key = key,
            .key_stride = key_stride,
            .value = value,
            .value_stride = value_stride,
            .slot_mapping = slot_mapping,
            .num_tokens = num_tokens,
            .k_cache = k_cache,
            .v_cache = v_cache};
  }

 private:
  RopeArgs RopeOf(Floats x, int64_t stride, int64_t heads) const {
    return {.x = x,
            .x_stride = stride,
            .num_tokens = num_tokens,
            .num_heads = heads,
            .head_dim = k_cache.dim,
            .rotary_dim = rotary_dim,
            .cos = cos,
            .sin = sin};
  }
};

// Gemm, then ActivationAndMul of what it gives. Between them: product.out, whose dtype is what gate
// and up are rounded to.
struct GatedGemmArgs {
  GemmArgs product;  // Of an even number of rows of weights: gate, then up.
  ActivationKind activation = ActivationKind::kSilu;
  DType round_to = DType::kF32;  // What `out` is rounded to, kept as float.
  Floats out;                    // [product.m, product.n() / 2]
  int64_t out_stride = 0;        // Elements from row to row; 0: dense.

  ActivationAndMulArgs Activation() const {
    return {.gate_up = product.out,
            .num_tokens = product.m,
            .dim = product.n() / 2,
            .activation = activation,
            .round_to = round_to,
            .out = out,
            .gate_up_stride = product.out_stride,
            .out_stride = out_stride};
  }
};

// Gemm, then RmsNorm of what it gives, added to a residual. Between them: product.out.
struct GemmAndNormArgs {
  GemmArgs product;
  const float* weight = nullptr;  // [product.n()]. These as of RmsNormArgs.
  bool one_plus_weight = false;
  float eps = 0;
  float* residual = nullptr;    // [product.m, product.n()]
  int64_t residual_stride = 0;  // Elements from row to row, as out_stride.
  DType round_to = DType::kF32;
  Floats out;  // [product.m, product.n()]
  int64_t out_stride = 0;

  RmsNormArgs Norm() const {
    return {.x = product.out,
            .x_stride = product.out_stride,
            .num_tokens = product.m,
            .dim = product.n(),
            .weight = weight,
            .one_plus_weight = one_plus_weight,
            .eps = eps,
            .residual = residual,
            .residual_stride = residual_stride,
            .round_to = round_to,
            .out = out,
            .out_stride = out_stride};
  }
};

}  // namespace baton
