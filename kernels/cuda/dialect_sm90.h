#pragma once

// The dialect's part for kernels of sm_90a, which stand in files *_sm90.cu, compiled for it alone:
// tensor copies from global memory that mbarriers count, and wgmma, products that a warpgroup of
// four warps starts and later waits for. Kernels keep these rules besides those of dialect.h:
// - Tiles are [rows][64] 16-bit elements at multiples of 1024 bytes; copies swizzle them, and wgmma
//   takes them so. Nothing else reads them; who writes them calls FenceProxy() and passes a
//   barrier.
// - An mbarrier is initialised, then FenceProxy(), then __syncthreads().
// - Sums of wgmma are touched only between WaitProducts of their last group and FenceSums; operands
//   in registers are not written but there.
#include "kernels/cuda/dialect.h"
#if defined(__CUDACC__)
#include "kernels/cuda/dialect_sm90_nvcc.h"
#else
#include "kernels/emulation/kernel_language_sm90.h"
#endif
