#pragma once

#include "kernels/cpu/kernel_set.h"

namespace baton::BATON_KERNEL_SET {

void MoeRouting(const MoeRoutingArgs& args, int64_t begin, int64_t end);
void MoeCombine(const MoeCombineArgs& args, int64_t begin, int64_t end);

}  // namespace baton::BATON_KERNEL_SET
