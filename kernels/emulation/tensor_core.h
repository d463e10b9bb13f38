#pragma once

#include <bit>
#include <cstdint>

namespace baton::emulation {

// How a tensor core sums, published by the authors of MMA-Sim (Xie et al. 2025, arXiv 2511.10909),
// who compared it with hardware bit by bit.
enum class Architecture : uint8_t {
  kAmpere,  // sm_80 to sm_89: two steps of 8 products, 24 fractional bits.
  kHopper,  // sm_90: one step of 16 products, 25 fractional bits.
};

// How 16 products of k and the sum so far are added up.
struct SumRule {
  int step;           // Of 16 or 8 products.
  int fraction_bits;  // At most 26.
  bool to_nearest = false;
  bool last_step_first = false;
  bool flushes_subnormals = false;  // Of the operands.
};
constexpr SumRule RuleOf(Architecture architecture) {
  return architecture == Architecture::kHopper ? SumRule{16, 25} : SumRule{8, 24};
}

// How wgmma might add if it did not add as mma.sync of Hopper does: what publications say of other
// GPUs, and what is next to it.
enum class Deviation : uint8_t {
  kNone,
  kFewerBits,      // 24 fractional bits.
  kMoreBits,       // 26.
  kNearest,        // The result is rounded to the nearest f32.
  kHalves,         // Two steps of 8 products.
  kSwappedHalves,  // The second 8 before the first.
  kFlushes,        // Subnormal operands are zeros.
};
constexpr SumRule RuleOf(Deviation deviation) {
  switch (deviation) {
    case Deviation::kFewerBits:
      return {16, 24};
    case Deviation::kMoreBits:
      return {16, 26};
    case Deviation::kNearest:
      return {.step = 16, .fraction_bits = 25, .to_nearest = true};
    case Deviation::kHalves:
      return {8, 25};
    case Deviation::kSwappedHalves:
      return {.step = 8, .fraction_bits = 25, .last_step_first = true};
    case Deviation::kFlushes:
      return {.step = 16, .fraction_bits = 25, .flushes_subnormals = true};
    case Deviation::kNone:
      break;
  }
  return RuleOf(Architecture::kHopper);
}

// What 16 bits are as bf16, or else as f16.
inline float HalfToFloat(bool is_bf16, uint32_t bits) {
  bits &= 0xffff;
  if (is_bf16) return std::bit_cast<float>(bits << 16);
  const uint32_t sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) {
    return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  }
  // The exponent's bias moves by a product, which is right for subnormals too.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

// To the nearest, ties to even; a NaN becomes 0x7fff, as by cvt.
inline uint32_t RoundToHalf(bool is_bf16, float x) {
  if (x != x) return 0x7fff;
  if (!is_bf16) return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// d[i][j] = c[i][j] + sum over k of a[i][k] * b[k][j], as mma.sync.m16n8k16 does for values of bf16
// or f16, where the rule is an architecture's. The products of a step are exact; they and the sum
// so far are cut to a multiple of 2^(e - fractional bits), e the greatest exponent among them,
// added without error, and the result is cut to an f32. Exponents are those of the operands: of a
// product their sum, whatever its mantissa; of subnormals the least normal one, 2^min_exponent.
// Every NaN is 0x7fffffff.
struct TileProduct {
  float a[16][16];
  float b[16][8];
  float c[16][8];
};
void MultiplyTile(const SumRule& rule, int min_exponent, TileProduct& tile);
inline void MultiplyTile(Architecture architecture, int min_exponent, TileProduct& tile) {
  MultiplyTile(RuleOf(architecture), min_exponent, tile);
}

}  // namespace baton::emulation
