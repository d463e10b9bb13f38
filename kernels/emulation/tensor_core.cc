#include "kernels/emulation/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace baton::emulation {
namespace {

constexpr int kNoExponent = -4000;
constexpr int kLeastExponent = -500;  // Below those of all products but zero.

// floor(log2 |x|), at least min_exponent; of zero one that never is the greatest.
int ExponentOf(float x, int min_exponent) {
  const int biased = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 255);
  if (x == 0) return kNoExponent;
  return std::max(biased - 127, min_exponent);
}

// 2^e for e in the range of normal doubles.
double PowerOfTwo(int e) { return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52); }

// Towards zero.
float TruncateToFloat(double x) {
  const auto nearest = static_cast<float>(x);
  const double size = std::fabs(x);
  const bool is_beyond = std::fabs(static_cast<double>(nearest)) > size && size < 0x1p128;
  // The number before it in size, also of infinity.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - static_cast<uint32_t>(is_beyond));
}

// Sums of products `first` to `last` of all k for one row of d.
struct RowSums {
  double product[16][8];
  int exponent[16][8];
};

float NotFinite(const RowSums& row, int first, int last, int j, float c) {
  double sum = c;
  for (int k = first; k < last; ++k) sum += row.product[k][j];
  return std::isnan(sum) ? std::bit_cast<float>(0x7fffffffu) : static_cast<float>(sum);
}

float RoundToFloat(bool to_nearest, double x) {
  return to_nearest ? static_cast<float>(x) : TruncateToFloat(x);
}

// One step: c[j] plus products [first, last) of column j. Loops over columns are vectors.
void AddProducts(const RowSums& row, int first, int last, const SumRule& rule, float (&c)[8]) {
  const int fraction_bits = rule.fraction_bits;
  int greatest[8];
  double not_finite[8];  // NaN where a summand is infinite or none.
  for (int j = 0; j < 8; ++j) greatest[j] = std::max(ExponentOf(c[j], -126), kLeastExponent);
  for (int j = 0; j < 8; ++j) not_finite[j] = c[j] * 0.0;
  for (int k = first; k < last; ++k) {
    for (int j = 0; j < 8; ++j) greatest[j] = std::max(greatest[j], row.exponent[k][j]);
    for (int j = 0; j < 8; ++j) not_finite[j] += row.product[k][j] * 0.0;
  }
  double scale[8], sum[8];
  for (int j = 0; j < 8; ++j) scale[j] = PowerOfTwo(fraction_bits - greatest[j]);
  // Below 2^(fraction bits + 2) each, so that an int holds it.
  for (int j = 0; j < 8; ++j) sum[j] = static_cast<int32_t>(c[j] * scale[j]);
  for (int k = first; k < last; ++k) {
    for (int j = 0; j < 8; ++j) sum[j] += static_cast<int32_t>(row.product[k][j] * scale[j]);
  }
  for (int j = 0; j < 8; ++j) {
    const float result =
        RoundToFloat(rule.to_nearest, sum[j] * PowerOfTwo(greatest[j] - fraction_bits));
    c[j] = std::isnan(not_finite[j]) ? NotFinite(row, first, last, j, c[j]) : result;
  }
}

// Operands below the least normal number become zeros.
void Flush(int min_exponent, TileProduct& tile) {
  const float least = std::ldexp(1.0f, min_exponent);
  const auto flush = [&](float& x) {
    if (std::fabs(x) < least) x = 0;
  };
  for (auto& row : tile.a) std::ranges::for_each(row, flush);
  for (auto& row : tile.b) std::ranges::for_each(row, flush);
}

}  // namespace

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default"), flatten))
#endif
void MultiplyTile(const SumRule& rule, int min_exponent, TileProduct& tile) {
  if (rule.flushes_subnormals) Flush(min_exponent, tile);
  int b_exponent[16][8];
  for (int k = 0; k < 16; ++k) {
    for (int j = 0; j < 8; ++j) b_exponent[k][j] = ExponentOf(tile.b[k][j], min_exponent);
  }
  for (int i = 0; i < 16; ++i) {
    RowSums row;
    for (int k = 0; k < 16; ++k) {
      const int a_exponent = ExponentOf(tile.a[i][k], min_exponent);
      for (int j = 0; j < 8; ++j) {
        row.product[k][j] = static_cast<double>(tile.a[i][k]) * tile.b[k][j];
        const int exponent = a_exponent + b_exponent[k][j];
        row.exponent[k][j] = exponent < kNoExponent / 2 ? kNoExponent : exponent;
      }
    }
    for (int k = 0; k < 16; k += rule.step) {
      const int first = rule.last_step_first ? 16 - rule.step - k : k;
      AddProducts(row, first, first + rule.step, rule, tile.c[i]);
    }
  }
}

}  // namespace baton::emulation
