#include "kernels/cpu/elementwise.h"

#include "kernels/api/cache_strides.h"
#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

void NormRow(const RmsNormArgs& args, const float* x, float* out) {
  Vec squares = Zero();
  ForLanes(args.dim, [&](int64_t i, int64_t n) {
    const Vec v = LoadUpTo(x + i, n);
    squares = Fma(v, v, squares);
  });
  const float mean = SumLanes(squares) / static_cast<float>(args.dim);
  const Vec inverse = Broadcast(1.0f / __builtin_sqrtf(mean + args.eps));
  const Vec offset = Broadcast(args.one_plus_weight ? 1.0f : 0.0f);
  ForLanes(args.dim, [&](int64_t i, int64_t n) {
    const Vec weight = LoadUpTo(args.weight + i, n) + offset;
    StoreUpTo(out + i, LoadUpTo(x + i, n) * inverse * weight, n);
  });
  RoundRow(args.round_to, out, args.dim);
}

void LayerNormRow(const LayerNormArgs& args, const float* x, float* out) {
  Vec sum = Zero();
  ForLanes(args.dim, [&](int64_t i, int64_t n) { sum = sum + LoadUpTo(x + i, n); });
  const Vec mean = Broadcast(SumLanes(sum) / static_cast<float>(args.dim));
  // Stored first: lanes behind the row must not count in the variance.
  ForLanes(args.dim,
           [&](int64_t i, int64_t n) { StoreUpTo(out + i, LoadUpTo(x + i, n) - mean, n); });
  Vec squares = Zero();
  ForLanes(args.dim, [&](int64_t i, int64_t n) {
    const Vec v = LoadUpTo(out + i, n);
    squares = Fma(v, v, squares);
  });
  const float variance = SumLanes(squares) / static_cast<float>(args.dim);
  const Vec inverse = Broadcast(1.0f / __builtin_sqrtf(variance + args.eps));
  ForLanes(args.dim, [&](int64_t i, int64_t n) {
    const Vec bias = args.bias == nullptr ? Zero() : LoadUpTo(args.bias + i, n);
    const Vec y = LoadUpTo(out + i, n) * inverse;
    StoreUpTo(out + i, Fma(y, LoadUpTo(args.weight + i, n), bias), n);
  });
  RoundRow(args.round_to, out, args.dim);
}

BATON_INLINE Vec Activate(ActivationKind kind, const Vec& x) {
  switch (kind) {
    case ActivationKind::kSilu:
      return Silu(x);
    case ActivationKind::kGelu:
      return Gelu(x);
    case ActivationKind::kGeluTanh:
      return GeluTanh(x);
    case ActivationKind::kRelu:
      break;
  }
  return Max(Zero(), x);
}

// The same operations as for halves, pair by pair.
void RotateNeighbours(const float* cos, const float* sin, int64_t pairs, float* x) {
  ForLanes(pairs, [&](int64_t i, int64_t n) {
    float lanes[2][kLanes] = {};
    for (int64_t j = 0; j < 2 * n; ++j) lanes[j % 2][j / 2] = x[2 * i + j];
    const Vec c = LoadUpTo(cos + i, n);
    const Vec s = LoadUpTo(sin + i, n);
    const Vec first = Load(lanes[0]);
    const Vec second = Load(lanes[1]);
    Store(lanes[0], Fma(first, c, Zero() - second * s));
    Store(lanes[1], Fma(second, c, first * s));
    for (int64_t j = 0; j < 2 * n; ++j) x[2 * i + j] = lanes[j % 2][j / 2];
  });
}

// Writes one token; elements of `group_dim` lie together, which is a whole row but for kPacked.
template <DType kType>
void CacheToken(const float* from, const CachePlane& cache, const CacheStrides& strides,
                int64_t slot) {
  const int64_t block = slot / cache.block_size;
  const int64_t offset = slot % cache.block_size;
  for (int64_t head = 0; head < cache.num_heads; ++head) {
    const int64_t to = strides.At(block, head, offset);
    const float* row = from + head * cache.dim;
    const bool scaled = IsFp8(kType) && cache.num_scales > 0;
    const float scale = scaled ? cache.scales[cache.num_scales == 1 ? 0 : head] : 1.0f;
    for (int64_t first = 0; first < cache.dim; first += strides.group_dim) {
      const int64_t group = to + first / strides.group_dim * strides.group;
      for (int64_t i = 0; i < strides.group_dim; ++i) {
        const float x = row[first + i];
        StoreOne<kType>(cache.data, group + i, scaled ? x / scale : x);
      }
    }
  }
}

void CacheToken(const float* from, const CachePlane& cache, CacheRole role, int64_t slot) {
  const CacheStrides strides = StridesOf(cache, role);
  switch (cache.dtype) {
    case DType::kF32:
      return CacheToken<DType::kF32>(from, cache, strides, slot);
    case DType::kF16:
      return CacheToken<DType::kF16>(from, cache, strides, slot);
    case DType::kBF16:
      return CacheToken<DType::kBF16>(from, cache, strides, slot);
    case DType::kFp8E4M3:
      return CacheToken<DType::kFp8E4M3>(from, cache, strides, slot);
    case DType::kFp8E5M2:
      return CacheToken<DType::kFp8E5M2>(from, cache, strides, slot);
  }
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const float* all = args.x.f32();
  float* out = args.out.f32();
  const int64_t residual_stride = args.residual_stride == 0 ? args.dim : args.residual_stride;
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t r = 0; r < args.rows_per_token; ++r) {
      const float* x = all + t * args.x_stride + r * args.dim;
      if (args.residual != nullptr) {
        float* residual = args.residual + t * residual_stride;
        ForLanes(args.dim, [&](int64_t i, int64_t n) {
          StoreUpTo(residual + i, LoadUpTo(residual + i, n) + LoadUpTo(x + i, n), n);
        });
        x = residual;
      }
      NormRow(args, x, out + t * args.out_stride + r * args.dim);
    }
  }
}

void LayerNorm(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const float* x = args.x.f32();
  float* out = args.out.f32();
  for (int64_t t = begin; t < end; ++t) {
    LayerNormRow(args, x + t * args.x_stride, out + t * args.out_stride);
  }
}

void Rope(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t half = args.rotary_dim / 2;
  float* all = args.x.f32();
  for (int64_t t = begin; t < end; ++t) {
    const float* cos = args.cos + t * half;
    const float* sin = args.sin + t * half;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      float* x = all + t * args.x_stride + h * args.head_dim;
      if (args.interleaved) {
        RotateNeighbours(cos, sin, half, x);
        continue;
      }
      ForLanes(half, [&](int64_t i, int64_t n) {
        const Vec c = LoadUpTo(cos + i, n);
        const Vec s = LoadUpTo(sin + i, n);
        const Vec first = LoadUpTo(x + i, n);
        const Vec second = LoadUpTo(x + half + i, n);
        StoreUpTo(x + i, Fma(first, c, Zero() - second * s), n);
        StoreUpTo(x + half + i, Fma(second, c, first * s), n);
      });
    }
  }
}

void Activation(const ActivationArgs& args, int64_t begin, int64_t end) {
  const float* all = args.x.f32();
  float* all_out = args.out.f32();
  for (int64_t t = begin; t < end; ++t) {
    const float* x = all + t * args.dim;
    float* out = all_out + t * args.dim;
    ForLanes(args.dim, [&](int64_t i, int64_t n) {
      StoreUpTo(out + i, Activate(args.activation, LoadUpTo(x + i, n)), n);
    });
    RoundRow(args.round_to, out, args.dim);
  }
}

void ActivationAndMul(const ActivationAndMulArgs& args, int64_t begin, int64_t end) {
  const float* all = args.gate_up.f32();
  float* all_out = args.out.f32();
  const int64_t stride = args.gate_up_stride == 0 ? 2 * args.dim : args.gate_up_stride;
  const int64_t out_stride = args.out_stride == 0 ? args.dim : args.out_stride;
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = all + t * stride;
    const float* up = gate + args.dim;
    float* out = all_out + t * out_stride;
    ForLanes(args.dim, [&](int64_t i, int64_t n) {
      const Vec g = LoadUpTo(gate + i, n);
      StoreUpTo(out + i, Activate(args.activation, g) * LoadUpTo(up + i, n), n);
    });
    RoundRow(args.round_to, out, args.dim);
  }
}

void Softcap(const SoftcapArgs& args, int64_t begin, int64_t end) {
  const Vec cap = Broadcast(args.cap);
  float* all = args.x.f32();
  for (int64_t t = begin; t < end; ++t) {
    float* x = all + t * args.x_stride;
    ForLanes(args.dim, [&](int64_t i, int64_t n) {
      StoreUpTo(x + i, cap * Tanh(LoadUpTo(x + i, n) / cap), n);
    });
  }
}

void FoldPartials(const FoldPartialsArgs& args, int64_t begin, int64_t end) {
  const int64_t part_stride = args.part_stride == 0 ? args.dim : args.part_stride;
  const int64_t out_stride = args.out_stride == 0 ? args.dim : args.out_stride;
  float* all_out = args.out.f32();
  for (int64_t t = begin; t < end; ++t) {
    float* out = all_out + t * out_stride;
    ForLanes(args.dim, [&](int64_t i, int64_t n) {
      Vec sums[kMaxRanks];
      for (int32_t p = 0; p < args.num_parts; ++p) {
        sums[p] = LoadUpTo(args.parts[p] + t * part_stride + i, n);
      }
      Vec sum = SumAsTree(sums, args.num_parts);
      if (args.bias != nullptr) sum = sum + LoadUpTo(args.bias + i, n);
      StoreUpTo(out + i, sum, n);
    });
    RoundRow(args.round_to, out, args.dim);
  }
}

void ReshapeAndCache(const ReshapeAndCacheArgs& args, int64_t begin, int64_t end) {
  const float* key = args.key.f32();
  const float* value = args.value.f32();
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = args.slot_mapping[t];
    if (slot < 0) continue;
    CacheToken(key + t * args.key_stride, args.k_cache, CacheRole::kKey, slot);
    CacheToken(value + t * args.value_stride, args.v_cache, CacheRole::kValue, slot);
  }
}

}  // namespace baton::BATON_KERNEL_SET
