#pragma once

// The dialect for nvcc: thin PTX, nothing else. Shapes and fragments are those of the PTX manual,
// section 9.7.14 (warp-level matrix instructions).

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#define BATON_UNROLL _Pragma("unroll")
#define BATON_ROLLED _Pragma("unroll 1")

namespace baton::cuda {

// `attribute` is the only one, or null.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchWith(cudaLaunchAttribute* attribute, void (*kernel)(Parameters...), dim3 grid,
                       dim3 block, size_t shared_bytes, cudaStream_t stream,
                       Arguments&&... arguments) {
  if (shared_bytes > 48 << 10) {  // More must be asked for.
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attribute;
  config.numAttrs = attribute == nullptr ? 0 : 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  return LaunchWith(nullptr, kernel, grid, block, shared_bytes, stream,
                    std::forward<Arguments>(arguments)...);
}

// The block's dynamic shared memory, seen as one struct. Tiles of wgmma begin at 1024 bytes.
template <typename T>
__device__ __forceinline__ T& SharedMemory() {
  extern __shared__ __align__(1024) unsigned char baton_shared_memory[];
  return *reinterpret_cast<T*>(baton_shared_memory);
}

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Within 2 ulp.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Both to the nearest T (Bf16 or F16), ties to even; `high` in the upper 16 bits.
template <typename T>
__device__ __forceinline__ uint32_t RoundPair(float low, float high) {
  uint32_t pair;
  if constexpr (T::kIsBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// The products of two pairs of T (Bf16 or F16), to the nearest, ties to even; subnormals count.
template <typename T>
__device__ __forceinline__ uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
  uint32_t pair;
  if constexpr (T::kIsBf16) {  // sm_80 has no mul of them: a sum with -0 changes no product.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(0x80008000u));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  }
  return pair;
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 j + i names row i of matrix j.
__device__ __forceinline__ void LoadMatrices(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// c += a * b, 16 x 8 x 16, elements of T (Bf16 or F16), sums in f32.
template <typename T>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  if constexpr (T::kIsBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Copies 16 bytes from global to shared memory behind the thread's back; 16 zeros if not `live`,
// and then `from` is not read. Done when the thread has waited for its group; other threads need a
// barrier on top.
__device__ __forceinline__ void CopyAsync(void* to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(live ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most so many of the thread's newest groups are under way.
template <int kPendingGroups>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPendingGroups) : "memory");
}

}  // namespace baton::cuda
