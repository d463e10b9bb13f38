#include "kernels/cpu/sampling/likeliest.h"

#include <limits>

#include "common/base/check.h"
#include "kernels/cpu/sampling/row_math.h"

namespace baton {
namespace {

// Each of `count` blocks holds one value of at least this, so the likeliest are all at least this.
float LowerBound(std::span<const float> block_max, int32_t count) {
  if (count > std::ssize(block_max)) return -std::numeric_limits<float>::infinity();
  std::vector<float> maxima(block_max.begin(), block_max.end());
  const auto nth = maxima.begin() + (count - 1);
  std::nth_element(maxima.begin(), nth, maxima.end(), std::greater<>());
  return *nth;
}

void CollectAtLeast(float bound, std::span<const float> x, std::span<const float> block_max,
                    std::vector<int32_t>& indexes) {
  const auto size = static_cast<int64_t>(x.size());
  for (int64_t block = 0; block < static_cast<int64_t>(block_max.size()); ++block) {
    if (block_max[block] < bound) continue;
    const int64_t end = std::min(size, (block + 1) * RowMath::kMaxBlock);
    for (int64_t i = block * RowMath::kMaxBlock; i < end; ++i) {
      if (x[i] >= bound) indexes.push_back(static_cast<int32_t>(i));
    }
  }
}

}  // namespace

void SelectLikeliest(std::span<const float> x, std::span<const float> block_max, int32_t count,
                     std::vector<int32_t>& indexes) {
  BATON_CHECK(count >= 0 && count <= std::ssize(x));
  indexes.clear();
  if (count == 0) return;
  CollectAtLeast(LowerBound(block_max, count), x, block_max, indexes);
  std::vector<float> values;
  values.reserve(indexes.size());
  for (const int32_t index : indexes) values.push_back(x[index]);
  int32_t num_kept = 0;
  for (const int32_t kept : SelectGreatest<float>(values, count)) {
    indexes[num_kept++] = indexes[kept];
  }
  indexes.resize(count);
}

void RankLikeliest(std::span<const float> x, std::span<const float> block_max, int32_t count,
                   std::vector<int32_t>& indexes) {
  SelectLikeliest(x, block_max, count, indexes);
  std::ranges::stable_sort(indexes, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
}

}  // namespace baton
