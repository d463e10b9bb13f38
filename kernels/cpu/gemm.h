#pragma once

#include "kernels/cpu/kernel_set.h"

// BATON_KERNEL_SET is the name of the build: each file of a kernel set is compiled once per set.
namespace baton::BATON_KERNEL_SET {

void Gemm(const GemmBlock& block);

}  // namespace baton::BATON_KERNEL_SET
