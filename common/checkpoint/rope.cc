#include "common/checkpoint/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/check.h"

namespace baton {
namespace {

// theta^(2i / rotary_dim), in float as torch computes it.
std::vector<float> PositionFrequencies(double theta, int32_t rotary_dim) {
  std::vector<float> out(RotatedElements(rotary_dim) / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    out[i] = std::pow(static_cast<float>(theta), exponent);
  }
  return out;
}

RopeFrequencies Plain(double theta, int32_t rotary_dim) {
  RopeFrequencies out{.inv_freq = PositionFrequencies(theta, rotary_dim)};
  for (float& f : out.inv_freq) f = 1.0f / f;
  return out;
}

RopeFrequencies Compute(const RopeDefault&, double theta, int32_t rotary_dim, int32_t) {
  return Plain(theta, rotary_dim);
}

RopeFrequencies Compute(const RopeLinear& form, double theta, int32_t rotary_dim, int32_t) {
  RopeFrequencies out = Plain(theta, rotary_dim);
  for (float& f : out.inv_freq) f /= static_cast<float>(form.factor);
  return out;
}

RopeFrequencies Compute(const RopeDynamic& form, double theta, int32_t rotary_dim, int32_t) {
  // Up to the original length the scale is 1, but for rounding, which is kept.
  const double length = form.original_max_positions;
  const double scale = form.factor * length / length - (form.factor - 1);
  const double exponent = static_cast<double>(rotary_dim) / (rotary_dim - 2);
  return Plain(theta * std::pow(scale, exponent), rotary_dim);
}

RopeFrequencies Compute(const RopeYarn& form, double theta, int32_t rotary_dim, int32_t) {
  // The dimension that turns `rotations` times over the original length.
  const auto correction_dim = [&](double rotations) {
    const double turns = form.original_max_positions / (rotations * 2 * std::numbers::pi);
    return rotary_dim * std::log(turns) / (2 * std::log(theta));
  };
  double low = correction_dim(form.beta_fast);
  double high = correction_dim(form.beta_slow);
  if (form.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += 0.001;

  RopeFrequencies out{.inv_freq = PositionFrequencies(theta, rotary_dim),
                      .attention_scaling = static_cast<float>(form.attention_factor)};
  for (size_t i = 0; i < out.inv_freq.size(); ++i) {
    const float pos_freq = out.inv_freq[i];
    const float extrapolated = 1.0f / pos_freq;
    const float interpolated = 1.0f / (static_cast<float>(form.factor) * pos_freq);
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    out.inv_freq[i] = interpolated * (1.0f - keep) + extrapolated * keep;
  }
  return out;
}

RopeFrequencies Compute(const RopeLlama3& form, double theta, int32_t rotary_dim, int32_t) {
  const double length = form.original_max_positions;
  const auto low_wavelen = static_cast<float>(length / form.low_freq_factor);
  const auto high_wavelen = static_cast<float>(length / form.high_freq_factor);
  const auto factor = static_cast<float>(form.factor);
  const auto low = static_cast<float>(form.low_freq_factor);
  const auto range = static_cast<float>(form.high_freq_factor - form.low_freq_factor);

  RopeFrequencies out = Plain(theta, rotary_dim);
  for (float& f : out.inv_freq) {
    const float wavelen = (1.0f / f) * static_cast<float>(2 * std::numbers::pi);
    if (wavelen < high_wavelen) continue;
    if (wavelen > low_wavelen) {
      f /= factor;
      continue;
    }
    const float smooth = ((1.0f / wavelen) * static_cast<float>(length) - low) / range;
    f = (1.0f - smooth) * f / factor + smooth * f;
  }
  return out;
}

RopeFrequencies Compute(const RopeLongrope& form, double theta, int32_t rotary_dim,
                        int32_t sequence_len) {
  const bool is_long = sequence_len > form.original_max_positions;
  const std::vector<double>& factors = is_long ? form.long_factors : form.short_factors;
  RopeFrequencies out{.inv_freq = PositionFrequencies(theta, rotary_dim),
                      .attention_scaling = static_cast<float>(form.attention_factor)};
  BATON_CHECK(factors.size() == out.inv_freq.size());
  for (size_t i = 0; i < out.inv_freq.size(); ++i) {
    out.inv_freq[i] = 1.0f / (static_cast<float>(factors[i]) * out.inv_freq[i]);
  }
  return out;
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeForm& form, int32_t rotary_dim,
                                       int32_t sequence_len) {
  BATON_CHECK(rotary_dim >= 1);
  return std::visit(
      [&](const auto& scaling) { return Compute(scaling, form.theta, rotary_dim, sequence_len); },
      form.scaling);
}

int32_t OriginalLen(const RopeForm& form) {
  const auto* longrope = std::get_if<RopeLongrope>(&form.scaling);
  return longrope == nullptr ? 0 : longrope->original_max_positions;
}

}  // namespace baton
