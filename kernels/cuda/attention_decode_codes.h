#pragma once

// Tiles of decode attention of sm_90a, and how codes of an fp8 cache become one.

#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/fp8_pairs.h"

namespace baton::cuda::attention::decode {

constexpr int kPanelColumns = 64;
constexpr int kConverters = 2;  // Warps.

template <int kPanels, typename T>
using TileOf = T[kPanels][kStepKeys][kPanelColumns];

// Of 64 keys, as copies have swizzled them: pairs of codes, up to 128 of each key.
struct CodeTiles {
  static constexpr int kStages = 6;

  alignas(1024) TileOf<1, uint16_t> tiles[kStages];
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
};
struct NoCodeTiles {};

// A converting warp's part of a tile: every other eight rows. At a time a lane has 16 codes of 64
// columns in eight rows. Of the lanes that access shared memory together, four have a row and four
// the one that differs in bits 0 and 2: the former puts elements in other banks, the latter codes.
template <typename Code, int kPanels, typename T>
BATON_DEVICE void ConvertTile(T (&to)[kPanels][kStepKeys][kPanelColumns],
                              const TileOf<1, uint16_t>& from, int warp) {
  const int lane = threadIdx.x % 32, chunk = lane % 4, row = lane / 8 ^ lane / 4 % 2 * 5;
  const auto load = [&](int i, int panel) {
    return *reinterpret_cast<const uint4*>(
        &from[0][8 * (kConverters * i + warp) + row][((4 * panel + chunk) ^ row) * 8]);
  };
  const auto store = [&](int i, int panel, int half, uint2 low, uint2 high) {
    *reinterpret_cast<uint4*>(
        &to[panel][8 * (kConverters * i + warp) + row][((2 * chunk + half) ^ row) * 8]) =
        make_uint4(low.x, low.y, high.x, high.y);
  };
  constexpr int kParts = kStepKeys / 8 / kConverters;
  uint32_t not_finite = 0;
  BATON_ROLLED
  for (int panel = 0; panel < kPanels; ++panel) {
    uint4 codes[kParts];
    BATON_UNROLL
    for (int i = 0; i < kParts; ++i) codes[i] = load(i, panel);
    BATON_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const uint4& x = codes[i];
      not_finite |= NotFinite<Code, T>(x.x) | NotFinite<Code, T>(x.y) | NotFinite<Code, T>(x.z) |
                    NotFinite<Code, T>(x.w);
      store(i, panel, 0, WidenFour<Code, T>(x.x), WidenFour<Code, T>(x.y));
      store(i, panel, 1, WidenFour<Code, T>(x.z), WidenFour<Code, T>(x.w));
    }
  }
  if (not_finite == 0) return;
  BATON_ROLLED
  for (int i = 0; i < kParts * kPanels; ++i) {
    const uint4 x = load(i / kPanels, i % kPanels);
    store(i / kPanels, i % kPanels, 0, WidenAnyFour<Code, T>(x.x), WidenAnyFour<Code, T>(x.y));
    store(i / kPanels, i % kPanels, 1, WidenAnyFour<Code, T>(x.z), WidenAnyFour<Code, T>(x.w));
  }
}

template <int kPanels, typename T>
BATON_DEVICE void ConvertTile(T (&to)[kPanels][kStepKeys][kPanelColumns],
                              const TileOf<1, uint16_t>& from, DType dtype, int warp) {
  if (dtype == DType::kFp8E4M3) {
    ConvertTile<Fp8E4M3>(to, from, warp);
  } else {
    ConvertTile<Fp8E5M2>(to, from, warp);
  }
}

}  // namespace baton::cuda::attention::decode
