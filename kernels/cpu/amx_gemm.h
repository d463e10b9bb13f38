#pragma once

#include "kernels/cpu/kernel_set.h"

// Products of bf16 by bf16 in the tile registers of AMX (TDPBF16PS; Intel, Intrinsics Guide and
// Architecture Instruction Set Extensions Programming Reference). Compiled in the set with AMX
// only. The process must have leave to use tiles (select_kernel_set.cc).
namespace baton::BATON_KERNEL_SET {

// Products of 16 pairs of k: what one instruction adds up.
inline constexpr int64_t kAmxStepK = 32;
// Two tile registers, one below the other.
inline constexpr int64_t kAmxTileRows = 32;
// Panels that the rows of a block pass by together.
inline constexpr int64_t kAmxPanels = 8;

// As PackActivations and WeightGemm, with bf16_group = kAmxStepK.
void AmxPackActivations(const float* a, int64_t a_stride, int64_t k, const RowTiles& tiles,
                        int64_t tile);
void AmxGemm(const WeightGemmBlock& block);

}  // namespace baton::BATON_KERNEL_SET
