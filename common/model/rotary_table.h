#pragma once

#include <cstdint>
#include <span>

#include "common/checkpoint/rope.h"

namespace baton {

// Writes the rotation of each position: `cos` and `sin` are [positions, rotary_dim / 2]. The angle
// is rounded to float as transformers does; the functions are exact to float and the same on every
// machine. Positions are below 2^20 / max(inv_freq).
void FillRotaryTable(const RopeFrequencies& frequencies, std::span<const int32_t> positions,
                     std::span<float> cos, std::span<float> sin);

}  // namespace baton
