#pragma once

#include "kernels/cpu/amx_gemm.h"
#include "kernels/cpu/kernel_set.h"

// BATON_KERNEL_SET is the name of the build: each file of a kernel set is compiled once per set.
namespace baton::BATON_KERNEL_SET {

// Rows that one pass over k holds in registers.
#if defined(__AVX512F__)
inline constexpr int kMaxTileRows = 12;
#else
inline constexpr int kMaxTileRows = 6;
#endif
inline constexpr GemmTiling kTiling = {.max_tile_rows = kMaxTileRows, .panels = 2};

// What this build multiplies bf16 by bf16 with.
#if defined(__AMX_BF16__)
inline constexpr GemmTiling kBf16Tiling = {
    .max_tile_rows = kAmxTileRows, .panels = kAmxPanels, .bf16_group = kAmxStepK};
inline constexpr const char* kBf16Numerics = "cpu-amx.2";
#elif defined(__AVX512BF16__)
inline constexpr GemmTiling kBf16Tiling = {
    .max_tile_rows = kMaxTileRows, .panels = 2, .bf16_group = 2};
inline constexpr const char* kBf16Numerics = "cpu-bf16dot.2";
#else
inline constexpr GemmTiling kBf16Tiling = kTiling;
inline constexpr const char* kBf16Numerics = "cpu-16lane.1";
#endif

void PackActivations(const float* a, int64_t a_stride, int64_t k, const RowTiles& tiles,
                     int64_t tile);
void WeightGemm(const WeightGemmBlock& block);

}  // namespace baton::BATON_KERNEL_SET
