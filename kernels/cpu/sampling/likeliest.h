#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace baton {

// The indexes of the `count` > 0 greatest values, ascending; of equal values those of lower index.
// Linear, whatever the count: nothing is sorted.
template <typename Value>
std::vector<int32_t> SelectGreatest(std::span<const Value> values, int32_t count) {
  std::vector<Value> divided(values.begin(), values.end());
  const auto last = divided.begin() + (count - 1);
  std::nth_element(divided.begin(), last, divided.end(), std::greater<>());
  const Value least = *last;
  int64_t equals = 1 + std::count_if(divided.begin(), last, [&](const Value& value) {
                     return !(value > least);
                   });
  std::vector<int32_t> indexes;
  indexes.reserve(count);
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_kept = values[i] > least || (!(least > values[i]) && equals-- > 0);
    if (is_kept) indexes.push_back(static_cast<int32_t>(i));
  }
  return indexes;
}

// Of x, which has no NaN, the indexes of the `count` <= x.size() greatest, of equals the lower
// ones, ascending. `block_max` is RowMath's of x: only blocks that can hold one of them are looked
// at.
void SelectLikeliest(std::span<const float> x, std::span<const float> block_max, int32_t count,
                     std::vector<int32_t>& indexes);

// The same, the greatest first.
void RankLikeliest(std::span<const float> x, std::span<const float> block_max, int32_t count,
                   std::vector<int32_t>& indexes);

}  // namespace baton
