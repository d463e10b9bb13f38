#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace baton {

// The rope forms, one struct each, with the names and formulas of transformers'
// modeling_rope_utils. A new form is: a struct here, its fields in rope_config.cc, its frequencies
// in rope.cc, its numbers in tests/golden/rope.json.

// Plain rotary embedding (Su et al. 2021).
struct RopeDefault {
  bool operator==(const RopeDefault&) const = default;
};

// Position interpolation: every frequency is divided by `factor`.
struct RopeLinear {
  double factor = 1;  // >= 1
  bool operator==(const RopeLinear&) const = default;
};

// Dynamic NTK. Up to `original_max_positions` it is the default form; beyond it the frequencies
// would depend on the length, so max_model_len ends there (ARCHITECTURE.md, bit-identity).
struct RopeDynamic {
  double factor = 1;  // >= 1
  int32_t original_max_positions = 0;
  bool operator==(const RopeDynamic&) const = default;
};

// NTK by parts with an attention factor (Peng et al. 2023, arXiv 2309.00071).
struct RopeYarn {
  double factor = 1;  // >= 1
  int32_t original_max_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1;  // Effective: explicit, or computed from factor and the mscales.
  bool truncate = true;         // Round the correction range outwards to whole dimensions.
  bool operator==(const RopeYarn&) const = default;
};

// Llama 3.1's smoothed interpolation of the low frequencies.
struct RopeLlama3 {
  double factor = 1;  // >= 1
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int32_t original_max_positions = 0;
  bool operator==(const RopeLlama3&) const = default;
};

// LongRoPE (Ding et al. 2024, arXiv 2402.13753), as in Phi-3: every frequency is divided by a
// factor of its own, out of "short_factor" in a sequence of up to the original length and out of
// "long_factor" in a longer one, all of its positions alike. Keys lie rotated in the cache: those
// of a sequence that grows past that length are computed again, as transformers does (Engine).
struct RopeLongrope {
  std::vector<double> short_factors;  // [rotary_dim / 2]
  std::vector<double> long_factors;   // [rotary_dim / 2]
  double attention_factor = 1;  // Effective: explicit, or computed from the two lengths.
  int32_t original_max_positions = 0;
  bool operator==(const RopeLongrope&) const = default;
};

using RopeScaling =
    std::variant<RopeDefault, RopeLinear, RopeDynamic, RopeYarn, RopeLlama3, RopeLongrope>;

struct RopeForm {
  double theta = 10000;  // >= 1, so every frequency is <= 1.
  RopeScaling scaling;
  bool operator==(const RopeForm&) const = default;
};

// What a rotation needs. Pair i of a head is (x[i], x[i + rotary_dim/2]) ("rotate half"), its angle
// at position p is float(p) * inv_freq[i], and cos and sin are both multiplied by
// attention_scaling.
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [RotatedElements / 2]
  float attention_scaling = 1;
};

// How many elements of a head a share of `rotary_dim` rotates: pairs, of an odd number one more.
inline int32_t RotatedElements(int32_t rotary_dim) { return rotary_dim + rotary_dim % 2; }

// The frequencies of `form`, rounded to float at the same points as transformers, for sequences of
// so many tokens: longrope alone has others from some length on. `rotary_dim`, at least 1, divides
// the exponents; yarn and longrope need an even one. A pure function.
RopeFrequencies ComputeRopeFrequencies(const RopeForm& form, int32_t rotary_dim,
                                       int32_t sequence_len = 1);

// Sequences of more tokens than this have other frequencies; 0: all have the same.
int32_t OriginalLen(const RopeForm& form);

}  // namespace baton
