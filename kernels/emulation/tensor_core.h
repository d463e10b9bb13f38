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
// or f16. The products of a step are exact; they and the sum so far are cut to a multiple of
// 2^(e - fractional bits), e the greatest exponent among them, added without error, and the result
// is cut to an f32. Exponents are those of the operands: of a product their sum, whatever its
// mantissa; of subnormals the least normal one, 2^min_exponent. Every NaN is 0x7fffffff.
struct TileProduct {
  float a[16][16];
  float b[16][8];
  float c[16][8];
};
void MultiplyTile(Architecture architecture, int min_exponent, TileProduct& tile);

}  // namespace baton::emulation
