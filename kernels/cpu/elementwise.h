#pragma once

#include "kernels/cpu/kernel_set.h"

namespace baton::BATON_KERNEL_SET {

void RmsNorm(const RmsNormArgs& args, int64_t begin, int64_t end);
void LayerNorm(const LayerNormArgs& args, int64_t begin, int64_t end);
void Rope(const RopeArgs& args, int64_t begin, int64_t end);
void Activation(const ActivationArgs& args, int64_t begin, int64_t end);
void ActivationAndMul(const ActivationAndMulArgs& args, int64_t begin, int64_t end);
void Softcap(const SoftcapArgs& args, int64_t begin, int64_t end);
void FoldPartials(const FoldPartialsArgs& args, int64_t begin, int64_t end);
void ReshapeAndCache(const ReshapeAndCacheArgs& args, int64_t begin, int64_t end);

}  // namespace baton::BATON_KERNEL_SET
