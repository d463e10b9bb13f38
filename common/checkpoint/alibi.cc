#include "common/checkpoint/alibi.h"

#include <bit>
#include <cmath>

namespace baton {
namespace {

// base^exponent of the float that stands for 2^(-8 / heads), by products alone, which every machine
// rounds alike.
float SlopeOf(int32_t heads, int32_t exponent) {
  const auto base = static_cast<double>(static_cast<float>(std::exp2(-8.0 / heads)));
  double slope = 1;
  for (int32_t i = 0; i < exponent; ++i) slope *= base;
  return static_cast<float>(slope);
}

}  // namespace

std::vector<float> AlibiSlopes(int32_t num_heads) {
  const auto power = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(num_heads)));
  std::vector<float> slopes;
  for (int32_t i = 1; i <= power; ++i) slopes.push_back(SlopeOf(power, i));
  for (int32_t i = 1; std::ssize(slopes) < num_heads; i += 2) {
    slopes.push_back(SlopeOf(2 * power, i));
  }
  return slopes;
}

}  // namespace baton
