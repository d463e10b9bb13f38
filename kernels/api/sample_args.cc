#include "kernels/api/sample_args.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"

namespace baton {
namespace {

// Uniform, keyed so that neighbours in any of the three are unrelated.
uint64_t DrawKey(uint64_t seed, uint32_t choice, int32_t position) {
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
  uint64_t key = Random::Mix(seed + kStep);
  key = Random::Mix(key + kStep * (uint64_t{choice} + 1));
  return Random::Mix(key + kStep * (static_cast<uint64_t>(position) + 1));
}

// A float's 24 bits are exact in units of 2^-63 for all p >= 2^-40; a smaller one keeps the
// likeliest token alone all the same.
uint64_t ShareOf(float p) {
  return p >= 1 ? 0 : std::max<uint64_t>(1, static_cast<uint64_t>(double{p} * 0x1p63));
}

}  // namespace

SampleRow MakeSampleRow(const SamplingParams& params, int32_t position) {
  return {
      .key = DrawKey(params.seed, params.choice, position),
      .scale = params.temperature == 0 ? 0 : 1.44269504088896338700 / double{params.temperature},
      .least_weight = static_cast<uint64_t>(
          std::llround(double{params.min_p} * static_cast<double>(kWeightOne))),
      .top_p = ShareOf(params.top_p),
      .top_k = params.top_k,
      .num_top = params.num_logprobs,
      .repetition = params.repetition_penalty,
      .frequency = params.frequency_penalty,
      .presence = params.presence_penalty,
  };
}

}  // namespace baton
