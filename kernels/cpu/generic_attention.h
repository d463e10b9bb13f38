#pragma once

#include "kernels/cpu/kernel_set.h"

namespace baton::BATON_KERNEL_SET {

// Attention by strides: every layout, dtype and option, in f32 and one row at a time, with the
// order of operations of Attention in f32.
int64_t GenericAttentionScratch(const AttentionShape& shape);
void GenericAttention(const GenericAttentionArgs& args, const AttentionTask& task, float* scratch);
// Folds the partials that tasks have left, and writes the output.
void ReduceGenericAttention(const GenericAttentionArgs& args, const AttentionTask& task,
                            float* scratch);

}  // namespace baton::BATON_KERNEL_SET
