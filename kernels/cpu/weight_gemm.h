#pragma once

#include "kernels/cpu/kernel_set.h"

// BATON_KERNEL_SET is the name of the build: each file of a kernel set is compiled once per set.
namespace baton::BATON_KERNEL_SET {

// Whether this build multiplies bf16 pairs in one instruction.
#if defined(__AVX512BF16__)
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif

// Rows that one pass over k holds in registers.
#if defined(__AVX512F__)
inline constexpr int kMaxTileRows = 12;
#else
inline constexpr int kMaxTileRows = 6;
#endif

void PackActivations(const float* a, int64_t a_stride, int64_t k, const RowTiles& tiles,
                     int64_t tile);
void WeightGemm(const WeightGemmBlock& block);

}  // namespace baton::BATON_KERNEL_SET
