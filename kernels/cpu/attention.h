#pragma once

#include "kernels/cpu/kernel_set.h"

namespace baton::BATON_KERNEL_SET {

int64_t AttentionScratch(const AttentionShape& shape);
void Attention(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch);
void ReduceAttention(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch);
void MergeAttentionStates(const MergeAttentionStatesArgs& args, int64_t begin, int64_t end);

}  // namespace baton::BATON_KERNEL_SET
