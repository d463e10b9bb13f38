#include "common/model/likeliest.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "common/base/check.h"
#include "kernels/api/row_math.h"

namespace baton {
namespace {

// Each of `count` blocks holds one value of at least this, so the likeliest are all at least this.
float LowerBound(std::span<const float> block_max, int32_t count) {
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

void FindLikeliest(std::span<const float> x, std::span<const float> block_max, int32_t count,
                   std::vector<int32_t>& indexes) {
  BATON_CHECK(count >= 0 && count <= static_cast<int64_t>(x.size()));
  indexes.clear();
  if (count == 0) return;
  if (count <= static_cast<int64_t>(block_max.size())) {
    CollectAtLeast(LowerBound(block_max, count), x, block_max, indexes);
  }
  if (static_cast<int64_t>(indexes.size()) < count) {
    indexes.resize(x.size());
    std::iota(indexes.begin(), indexes.end(), 0);
  }
  const auto likelier = [&](int32_t a, int32_t b) {
    if (std::isnan(x[a]) != std::isnan(x[b])) return std::isnan(x[b]);
    return x[a] > x[b] || (!(x[a] < x[b]) && a < b);
  };
  const auto end = indexes.begin() + count;
  std::nth_element(indexes.begin(), end - 1, indexes.end(), likelier);
  std::sort(indexes.begin(), end, likelier);
  indexes.resize(count);
}

}  // namespace baton
