#include "kernels/cpu/sampling/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kSign = 1u << 31;

// Integers in the order of floats.
uint32_t KeyOf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

float ValueOf(uint32_t key) {
  return std::bit_cast<float>((key & kSign) != 0 ? key & ~kSign : ~key);
}

}  // namespace

// A bound that exactly n of x reach, or the value that is the n-th where others equal it.
float Candidates::NthGreatest(std::span<const float> x, int32_t n) const {
  uint32_t low = KeyOf(-kFloatInfinity), high = KeyOf(kFloatInfinity) + 1;
  for (int64_t reaching = -1; reaching != n && high - low > 1;) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t count = math_->count_at_least(x.data(), std::ssize(x), ValueOf(middle));
    if (count >= n) {
      low = middle;
      reaching = count;
    } else {
      high = middle;
    }
  }
  return ValueOf(low);
}

void Candidates::FindAtLeast(std::span<const float> x, float bound) {
  if (tokens_.size() < x.size()) {
    tokens_.resize(x.size());
    values_.resize(x.size());
  }
  count_ = math_->find_at_least(x.data(), std::ssize(x), bound, tokens_.data(), values_.data());
}

void Candidates::FindGreatest(std::span<const float> x, std::span<const float> block_max,
                              int32_t count) {
  BATON_CHECK(count >= 0 && count <= std::ssize(x));
  count_ = 0;
  if (count == 0) return;
  // Each of `count` blocks holds a value of at least the bound, so all that are sought reach it.
  FindAtLeast(x, NthGreatest(count <= std::ssize(block_max) ? block_max : x, count));
  const float least = NthGreatest(values(), count);
  const float above = std::nextafter(least, kFloatInfinity);
  int64_t equals = count - math_->count_at_least(values_.data(), count_, above);
  int64_t kept = 0;
  for (int64_t i = 0; i < count_; ++i) {
    if (values_[i] < least || (values_[i] == least && equals-- <= 0)) continue;
    tokens_[kept] = tokens_[i];
    values_[kept++] = values_[i];
  }
  BATON_CHECK(kept == count);
  count_ = kept;
}

void Candidates::Rank(std::span<const float> x) {
  std::stable_sort(tokens_.begin(), tokens_.begin() + count_,
                   [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  for (int64_t i = 0; i < count_; ++i) values_[i] = x[tokens_[i]];
}

}  // namespace baton
