#include "kernels/cuda/cache.h"
#include "kernels/cuda/cache_groups.h"

namespace baton::cuda {
namespace rope_and_cache {

constexpr int kThreads = 256;

// What a thread of RopeAndCacheKernel does, in this order of a token's units.
struct Units {
  int64_t turns;   // Of a head: four pairs that are rotated.
  int64_t passes;  // Of a head of K: groups that are not.
  int64_t q, k;    // Of all heads; then come the groups of V.
  int64_t each;    // Of a token.
};

// Four pairs of a head, rotated and rounded as Rope leaves them in memory.
template <typename X>
BATON_DEVICE void Rotate(const RopeAndCacheArgs& args, int64_t token, const X* head, int64_t pair,
                         float (&first)[4], float (&second)[4]) {
  const int64_t half = args.rotary_dim / 2, angle = token * half + pair;
  float a[4], b[4], c[4], s[4];
  LoadFour(head + pair, 4, true, a);
  LoadFour(head + half + pair, 4, true, b);
  LoadFour(args.cos + angle, 4, true, c);
  LoadFour(args.sin + angle, 4, true, s);
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    first[i] = ToFloat(FromFloat<X>(fmaf(a[i], c[i], 0.0f - b[i] * s[i])));
    second[i] = ToFloat(FromFloat<X>(fmaf(b[i], c[i], a[i] * s[i])));
  }
}

template <typename Cache>
BATON_DEVICE void StoreScaled(Cache* to, const float (&x)[4], float scale) {
  Cache values[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) values[i] = ToCache<Cache>(x[i], scale);
  StoreVectors(to, values);
}

// A thread for each unit of a token.
template <typename X, typename Cache>
__global__ void __launch_bounds__(kThreads)
    RopeAndCacheKernel(RopeAndCacheArgs args, Units units, Steps k_steps, Steps v_steps) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.num_tokens * units.each) return;
  const int64_t token = index / units.each;
  int64_t unit = index % units.each;
  float first[4], second[4];
  if (unit < units.q) {
    X* const head = static_cast<X*>(args.q.data) + token * args.q_stride +
                    unit / units.turns * args.k_cache.dim;
    const int64_t pair = unit % units.turns * 4;
    Rotate(args, token, head, pair, first, second);
    StoreFour(head + pair, 4, true, first);
    StoreFour(head + args.rotary_dim / 2 + pair, 4, true, second);
    return;
  }
  const int64_t slot = args.slot_mapping[token];
  if (slot < 0) return;
  unit -= units.q;
  const bool is_key = unit < units.k;
  if (!is_key) unit -= units.k;
  const CachePlane& cache = is_key ? args.k_cache : args.v_cache;
  const int64_t per_head = is_key ? units.turns + units.passes : cache.dim / kGroup;
  const int64_t head = unit / per_head, part = unit % per_head;
  const X* const from = static_cast<const X*>(is_key ? args.key.data : args.value.data) +
                        token * (is_key ? args.key_stride : args.value_stride) + head * cache.dim;
  Cache* const to = RowOf<Cache>(cache, is_key ? k_steps : v_steps, slot, head);
  const float scale = ScaleOf(cache, head);
  if (is_key && part < units.turns) {
    Rotate(args, token, from, part * 4, first, second);
    StoreScaled(to + part * 4, first, scale);
    StoreScaled(to + args.rotary_dim / 2 + part * 4, second, scale);
    return;
  }
  const int64_t at = is_key ? args.rotary_dim + (part - units.turns) * kGroup : part * kGroup;
  LoadFour(from + at, 4, true, first);
  LoadFour(from + at + 4, 4, true, second);
  StoreScaled(to + at, first, scale);
  StoreScaled(to + at + 4, second, scale);
}

}  // namespace rope_and_cache

namespace {

template <typename X, typename Cache>
cudaError_t LaunchUnits(const RopeAndCacheArgs& args, cudaStream_t stream) {
  const CachePlane &k = args.k_cache, &v = args.v_cache;
  rope_and_cache::Units units{.turns = args.rotary_dim / kGroup,
                              .passes = (k.dim - args.rotary_dim) / kGroup};
  units.q = args.q ? args.num_heads * units.turns : 0;
  units.k = k.num_heads * (units.turns + units.passes);
  units.each = units.q + units.k + v.num_heads * (v.dim / kGroup);
  return Launch(rope_and_cache::RopeAndCacheKernel<X, Cache>,
                BlocksFor(args.num_tokens * units.each, rope_and_cache::kThreads),
                rope_and_cache::kThreads, 0, stream, args, units, StepsOf(k), StepsOf(v));
}

template <typename X>
cudaError_t ChooseCache(const RopeAndCacheArgs& args, cudaStream_t stream) {
  if (args.k_cache.dtype == DType::kFp8E4M3) return LaunchUnits<X, Fp8E4M3>(args, stream);
  if (args.k_cache.dtype == DType::kFp8E5M2) return LaunchUnits<X, Fp8E5M2>(args, stream);
  return LaunchUnits<X, X>(args, stream);
}

}  // namespace

bool RopeAndCacheServes(const RopeAndCacheArgs& args) {
  const CachePlane &k = args.k_cache, &v = args.v_cache;
  const DType type = args.key.dtype;
  const bool one_type = type != DType::kF32 && args.value.dtype == type &&
                        (!args.q || args.q.dtype == type) && k.dtype == v.dtype &&
                        (k.dtype == type || IsFp8(k.dtype));
  return one_type && k.layout == v.layout && k.layout != CacheLayout::kPacked &&
         args.rotary_dim > 0 && args.rotary_dim % kGroup == 0 &&
         HasVectors(args.q.data, type, k.dim, args.q_stride) &&
         HasVectors(args.cos, DType::kF32, args.rotary_dim / 2, args.rotary_dim / 2) &&
         HasVectors(args.sin, DType::kF32, args.rotary_dim / 2, args.rotary_dim / 2) &&
         HasGroups(args.key, args.key_stride, k, StepsOf(k)) &&
         HasGroups(args.value, args.value_stride, v, StepsOf(v));
}

cudaError_t RopeAndCache(const RopeAndCacheArgs& args, cudaStream_t stream) {
  if (!RopeAndCacheServes(args)) return cudaErrorInvalidValue;
  if (args.num_tokens == 0) return cudaSuccess;
  if (args.key.dtype == DType::kBF16) return ChooseCache<Bf16>(args, stream);
  return ChooseCache<F16>(args, stream);
}

}  // namespace baton::cuda
