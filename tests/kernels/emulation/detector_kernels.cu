#include "tests/kernels/emulation/detector_kernels.h"

#include "kernels/cuda/floats.h"

namespace baton::detectors {

struct Scratch {
  uint4 wide[64];
  float words[64];
};
struct LargerScratch {
  Scratch scratch;
  float more[64];
};

BATON_DEVICE void SharedFaults(const FaultArgs& args, Scratch& s, int t) {
  const int neighbour = t ^ 1, far = t ^ 32;
  if (args.fault == Fault::kNone) {
    s.words[t] = static_cast<float>(t);
    __syncthreads();
    const float x = s.words[far];
    __syncthreads();
    s.words[t] = x;
    if (blockIdx.x == 0) args.data[t] = s.words[t];
  } else if (args.fault == Fault::kNoBarrier) {
    s.words[t] = 0;
    __syncthreads();
    s.words[t] = 1;
    args.data[t] = s.words[far];
  } else if (args.fault == Fault::kNoWarpBarrier || args.fault == Fault::kWarpBarrier) {
    s.words[t] = 0;
    __syncthreads();
    s.words[t] = 1;
    if (args.fault == Fault::kWarpBarrier) __syncwarp();
    if (blockIdx.x == 0) args.data[t] = s.words[neighbour];
  } else if (args.fault == Fault::kOverwrites) {
    s.words[t] = 1;
    __syncthreads();
    args.data[t] = s.words[far];
    s.words[t] = 2;
  } else if (args.fault == Fault::kUninitialised) {
    args.data[t] = s.words[t];
  } else if (args.fault == Fault::kBeyondShared) {
    s.words[t + 64] = 1;
  } else if (args.fault == Fault::kTooMuchShared) {
    cuda::SharedMemory<LargerScratch>().more[t] = 1;
  } else if (args.fault == Fault::kMisalignedShared) {
    s.words[t] = 1;
    *reinterpret_cast<uint4*>(&s.words[1]) = make_uint4(0, 0, 0, 0);
  }
}

// Thread 1 writes, thread 0 counts and, in the last block, sums.
BATON_DEVICE void LastBlockSums(const FaultArgs& args, int t) {
  if (t > 31) return;
  if (args.fault == Fault::kLastBlockFencesFirst && t == 0) __threadfence();
  if (t == 1) args.data[64 + 2 * blockIdx.x] = 1;
  if (args.fault == Fault::kLastBlockOtherThread && t == 2) __threadfence();
  if (args.fault != Fault::kLastBlockUnknown) __syncwarp();
  if (t != 0) return;
  if (args.fault != Fault::kLastBlockNoFence && args.fault != Fault::kLastBlockFencesFirst &&
      args.fault != Fault::kLastBlockOtherThread) {
    __threadfence();
  }
  if (atomicInc(args.counter, gridDim.x - 1) != gridDim.x - 1) return;
  if (args.fault != Fault::kLastBlockReadsAtOnce) __threadfence();
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    if (i != blockIdx.x) sum += args.data[64 + 2 * i];
  }
  args.data[0] = sum;
}

BATON_DEVICE void GlobalFaults(const FaultArgs& args, int t) {
  const unsigned block = blockIdx.x;
  if (args.fault == Fault::kBeyondGlobal) {
    args.data[64 + 2 * gridDim.x + t] = 1;
  } else if (args.fault == Fault::kMisalignedGlobal) {
    args.data[0] = static_cast<float>(reinterpret_cast<const uint4*>(args.data + 1)->x);
  } else if (args.fault == Fault::kHostPointer) {
    args.data[0] = 1;
  } else if (args.fault == Fault::kBlocksWriteOne) {
    if (t == 0) args.data[0] = 1;
  } else if (args.fault == Fault::kBlockReadsOther) {
    if (t == 0 && block == 0) args.data[0] = 1;
    if (t == 0 && block == 1) args.data[2] = args.data[0];
  } else if (args.fault == Fault::kBlockOverwritesRead) {
    if (t == 0 && block == 0) args.data[2] = args.data[0];
    if (t == 0 && block == 1) args.data[0] = 1;
  } else if (args.fault == Fault::kThreadsWriteOne) {
    args.data[2 * block] = static_cast<float>(t);
  } else if (args.fault >= Fault::kLastBlockSums && args.fault <= Fault::kLastBlockOtherThread) {
    LastBlockSums(args, t);
  } else if (args.fault == Fault::kPlainAdd) {
    if (t == 0) *args.counter += 1;
  } else if (args.fault == Fault::kSpins) {
    while (*reinterpret_cast<volatile uint32_t*>(args.counter) == 0) {
    }
  }
}

BATON_DEVICE void Divergence(const FaultArgs& args, int t) {
  if (args.fault == Fault::kSplitBarrier) {
    if (t < 32) {
      __syncthreads();
    } else {
      args.data[t] = 1;
      __syncthreads();
    }
  } else if (args.fault == Fault::kEarlyExit) {
    if (t == 5) return;
    __syncthreads();
  } else if (args.fault == Fault::kSplitWarp) {
    float x = 1;
    if (t % 32 < 16) {
      x += __shfl_xor_sync(~0u, x, 1);
    } else {
      x -= __shfl_xor_sync(~0u, x, 1);
    }
    args.data[t] = x;
  } else if (args.fault == Fault::kForeignMask) {
    args.data[t] = __shfl_xor_sync(0xffffu, 1.0f, 1);
  } else if (args.fault == Fault::kAbsentLane) {
    if (t % 32 == 3) return;
    args.data[t] = __shfl_xor_sync(~0u, 1.0f, 1);
  } else if (args.fault == Fault::kShuffleOutside) {
    if (t % 32 < 16) args.data[t] = __shfl_xor_sync(0xffffu, 1.0f, 16);
  }
}

BATON_DEVICE void CopyFaults(const FaultArgs& args, Scratch& s, int t) {
  const float* from = args.data + t % 16 * 4;
  if (args.fault == Fault::kCopyNotCommitted) return cuda::CopyAsync(&s.wide[t], from, true);
  cuda::CopyAsync(&s.wide[t], from, true);
  cuda::CommitCopies();
  if (args.fault == Fault::kCopyNeverWaited) return;
  if (args.fault == Fault::kCopyOverwritten) s.wide[t] = make_uint4(0, 0, 0, 0);
  if (args.fault != Fault::kCopyNotWaited) cuda::WaitCopies<0>();
  const uint4 x = s.wide[args.fault == Fault::kCopyOfOther ? t ^ 1 : t];
  cuda::WaitCopies<0>();
  if (x.x == 1) args.data[0] = 1;
}

// All of 16 bytes is touched before one of their words is.
BATON_DEVICE void PartFaults(const FaultArgs& args, Scratch& s, int t) {
  if (blockIdx.x != 0) return;
  const bool is_shared = args.fault == Fault::kSharedPart || args.fault == Fault::kSharedOtherPart;
  auto* const wide = is_shared ? s.wide : reinterpret_cast<uint4*>(args.data);
  auto* const words = reinterpret_cast<uint32_t*>(wide);
  if (t == 0 && is_shared) wide[0] = make_uint4(1, 2, 3, 4);
  if (t == 0) wide[2] = wide[0];
  __syncthreads();
  if (t == 5) words[2] = 7;
  if (t != 40) return;
  if (args.fault == Fault::kSharedPart || args.fault == Fault::kGlobalPart) {
    wide[1] = wide[0];
  } else {
    words[4] = words[3];
  }
}

__global__ void FaultKernel(FaultArgs args) {
  auto& s = cuda::SharedMemory<Scratch>();
  const int t = threadIdx.x;
  SharedFaults(args, s, t);
  GlobalFaults(args, t);
  Divergence(args, t);
  if (args.fault >= Fault::kCopyNotWaited && args.fault <= Fault::kCopyOverwritten) {
    CopyFaults(args, s, t);
  }
  if (args.fault >= Fault::kSharedPart) PartFaults(args, s, t);
}

struct ProductTiles {
  uint16_t a[16][16];
  uint16_t b[8][16];
};

template <typename T>
__global__ void ProductKernel(const uint16_t* a, const uint16_t* b, float* c) {
  auto& s = cuda::SharedMemory<ProductTiles>();
  const int lane = threadIdx.x;
  cuda::CopyAsync(&s.a[lane / 2][lane % 2 * 8], a + lane * 8, true);
  if (lane < 16) cuda::CopyAsync(&s.b[lane / 2][lane % 2 * 8], b + lane * 8, true);
  cuda::CommitCopies();
  cuda::WaitCopies<0>();
  __syncwarp();
  uint32_t fa[4], fb[4];
  cuda::LoadMatrices(fa, &s.a[lane % 16][lane / 16 * 8]);
  cuda::LoadMatrices(fb, &s.b[lane % 8][lane / 8 % 2 * 8]);
  float sum[4];
  const int row = lane / 4, column = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) sum[i] = c[(row + i / 2 * 8) * 8 + column + i % 2];
  cuda::MultiplyAdd<T>(sum, fa, fb[0], fb[1]);
  for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 8 + column + i % 2] = sum[i];
}

__global__ void WarpKernel(uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  out[lane] = __shfl_sync(~0u, lane * 10, 5, 16);
  out[32 + lane] = __shfl_up_sync(~0u, lane, 3);
  out[64 + lane] = __shfl_down_sync(~0u, lane, 3, 8);
  out[96 + lane] = __shfl_xor_sync(~0u, lane, 6);
  out[128 + lane] = __ballot_sync(~0u, lane % 3 == 0);
}

__global__ void OrderKernel(uint32_t* counter, uint32_t* order) {
  order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1u);
}

__global__ void AddKernel(float* to, float by) { *to += by; }

cudaError_t RunFault(const FaultArgs& args, int blocks, cudaStream_t stream) {
  return cuda::Launch(FaultKernel, blocks, 64, sizeof(Scratch), stream, args);
}

cudaError_t RunProduct(bool is_bf16, const uint16_t* a, const uint16_t* b, float* c,
                       cudaStream_t stream) {
  return cuda::Launch(is_bf16 ? ProductKernel<cuda::Bf16> : ProductKernel<cuda::F16>, 1, 32,
                      sizeof(ProductTiles), stream, a, b, c);
}

cudaError_t RunWarpFunctions(uint32_t* out, cudaStream_t stream) {
  return cuda::Launch(WarpKernel, 1, 32, 0, stream, out);
}

cudaError_t RunOrder(uint32_t* counter, uint32_t* order, cudaStream_t stream) {
  return cuda::Launch(OrderKernel, 4, 64, 0, stream, counter, order);
}

cudaError_t RunAdd(float* to, float by, cudaStream_t stream) {
  return cuda::Launch(AddKernel, 1, 1, 0, stream, to, by);
}

}  // namespace baton::detectors
