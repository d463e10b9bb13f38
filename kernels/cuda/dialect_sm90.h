#pragma once

// The dialect's part for kernels of sm_90a, which stand in files *_sm90.cu, compiled for it alone:
// tensor copies from global memory that mbarriers count, and wgmma, products that a warpgroup of
// four warps starts and later waits for; clusters of up to 8 blocks, neighbours in x, which store
// into each other's shared memory. Kernels keep these rules besides those of dialect.h:
// - Tiles are [rows][64] 16-bit elements at multiples of 1024 bytes; copies swizzle them, and wgmma
//   takes them so. Nothing else writes what wgmma reads; zeros may, before a FenceProxy() and a
//   barrier. ldmatrix reads them where the swizzle has put them: chunk i of 16 bytes of row r is at
//   i ^ r % 8.
// - An mbarrier is initialised, then FenceProxy(), then __syncthreads().
// - Sums of wgmma are touched only between WaitProducts of their last group and FenceSums; operands
//   in registers are not written but there.
// - Every thread of a cluster comes to each of its barriers, in two steps: ArriveCluster, and later
//   WaitCluster. A block stores into another's memory only behind a barrier, which says that the
//   other has started; and before one for which the other waits, before it reads that or ends.
#include "kernels/cuda/dialect.h"
#if defined(__CUDACC__)
#include "kernels/cuda/dialect_sm90_nvcc.h"
#else
#include "kernels/emulation/kernel_language_sm90.h"
#endif
