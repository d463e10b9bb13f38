#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace baton {

// The indexes of the `count` <= x.size() greatest of x, the greatest first, of equals the lower
// index first; NaNs come last. `block_max` is RowMath's of x: only blocks that can hold one of
// them are looked at.
void FindLikeliest(std::span<const float> x, std::span<const float> block_max, int32_t count,
                   std::vector<int32_t>& indexes);

}  // namespace baton
