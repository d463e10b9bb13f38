#pragma once

// dialect_sm90.h for nvcc. Statements, descriptors and fragments are those of the PTX manual,
// sections 9.7.9 (mapa, st, asynchronous copies), 9.7.13 (barrier.cluster, mbarrier) and 9.7.15
// (wgmma).

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/dialect_nvcc.h"

// Four and eight registers of a wgmma's sums.
#define BATON_FOUR_SUMS(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define BATON_SUMS(i)                                                                         \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])

// The names of so many sums in a wgmma's text, and their registers.
#define BATON_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BATON_NAMES_32 \
  BATON_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BATON_NAMES_64                                                               \
  BATON_NAMES_32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_NAMES_128                                                                          \
  BATON_NAMES_64                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126"   \
  ", %127"
#define BATON_SUMS_16 BATON_SUMS(0), BATON_SUMS(8)
#define BATON_SUMS_32 BATON_SUMS_16, BATON_SUMS(16), BATON_SUMS(24)
#define BATON_SUMS_64 BATON_SUMS_32, BATON_SUMS(32), BATON_SUMS(40), BATON_SUMS(48), BATON_SUMS(56)
#define BATON_SUMS_128                                                                           \
  BATON_SUMS_64, BATON_SUMS(64), BATON_SUMS(72), BATON_SUMS(80), BATON_SUMS(88), BATON_SUMS(96), \
      BATON_SUMS(104), BATON_SUMS(112), BATON_SUMS(120)

namespace baton::cuda {

using TensorMap = CUtensorMap;

// Of an array of 16-bit elements; `strides` in bytes, of all dimensions but the first.
inline cudaError_t EncodeTensorMap(TensorMap& map, const void* data,
                                   std::span<const uint64_t> sizes,
                                   std::span<const uint64_t> strides,
                                   std::span<const uint32_t> box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                     &found);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  if (encode == nullptr) return cudaErrorInsufficientDriver;
  constexpr cuuint32_t kSteps[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, static_cast<cuuint32_t>(sizes.size()),
             const_cast<void*>(data), sizes.data(), strides.data(), box.data(), kSteps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// As Launch, with clusters of so many blocks, neighbours in x.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchClusters(void (*kernel)(Parameters...), int blocks, dim3 grid, dim3 block,
                           size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  return LaunchWith(&attribute, kernel, grid, block, shared_bytes, stream,
                    std::forward<Arguments>(arguments)...);
}

// What threads of the cluster did before they arrived is seen by who has waited. A whole warp at a
// time.
__device__ __forceinline__ void ArriveCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// To where `place`, in this block's shared memory, lies in that of the cluster's block of that
// rank.
__device__ __forceinline__ void StoreRemote(float4& place, int block, float4 value) {
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
      "st.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};}" ::"r"(SharedAddress(&place)),
      "r"(block), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

struct Mbarrier {
  uint64_t bits;
};

__device__ __forceinline__ void InitMbarrier(Mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void FenceProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void Arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&barrier))
               : "memory");
}
// The phase ends when so many bytes have landed, too.
__device__ __forceinline__ void ArriveExpecting(Mbarrier& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&barrier)),
      "r"(bytes)
      : "memory");
}
// For the end of the phase of that parity: those of 0, 1, 2, ... have 0, 1, 0, ...; before the
// first one there is one of parity 1 that has ended.
__device__ __forceinline__ void Wait(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred ended; again: "
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1; "
      "@!ended bra again;}" ::"r"(SharedAddress(&barrier)),
      "r"(parity)
      : "memory");
}
// The map's box from (x, y, z) on, by one thread.
__device__ __forceinline__ void CopyBox(void* to, const TensorMap& map, Mbarrier& barrier, int x,
                                        int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(SharedAddress(&barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void CopyBox(void* to, const TensorMap& map, Mbarrier& barrier, int x,
                                        int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(SharedAddress(&barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Registers of each thread of the warpgroup from now on.
template <int kCount>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// K in rows of 128 bytes, swizzled; eight rows lie 1024 bytes before the next.
__device__ __forceinline__ uint64_t TileDescriptor(const void* tile) {
  return (SharedAddress(tile) & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// K in 64 rows of 128 bytes, swizzled, of 64 columns; the next 64 columns lie 64 rows behind them.
__device__ __forceinline__ uint64_t RowsDescriptor(const void* rows) {
  return (SharedAddress(rows) & 0x3ffff) >> 4 | uint64_t{64 * 128 >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Keeps the compiler from moving what touches them to the other side.
template <int kCount>
__device__ __forceinline__ void PinSums(float (&sums)[kCount]) {
  BATON_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
// What they hold is what the next product adds to.
template <int kCount>
__device__ __forceinline__ void FenceSums(float (&sums)[kCount]) {
  PinSums(sums);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

template <int kCount>
__device__ __forceinline__ void PinOperands(uint32_t (&operands)[kCount]) {
  BATON_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(operands[i])::"memory");
}
// The same with operands in registers, which the next products read.
template <int kCount, int kOperands>
__device__ __forceinline__ void FenceSums(float (&sums)[kCount], uint32_t (&operands)[kOperands]) {
  PinOperands(operands);
  FenceSums(sums);
}

// c += a * b^T of 16 columns of k: a has 64 rows, b 128, elements of T. Column 8 j + lane % 4 * 2
// of row 16 * warp + lane / 4 is c[4 j], of the row 8 below c[4 j + 2].
template <typename T>
__device__ __forceinline__ void MultiplyAsync(float (&c)[64], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BATON_NAMES_64
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_64
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" BATON_NAMES_64
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_64
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  }
}
// The same with 256 columns.
template <typename T>
__device__ __forceinline__ void MultiplyAsync(float (&c)[128], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" BATON_NAMES_128
                 "}, %128, %129, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_128
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" BATON_NAMES_128
                 "}, %128, %129, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_128
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  }
}
// The same with 8, 16, 32 and 64 columns.
template <typename T>
__device__ __forceinline__ void MultiplyAsync(float (&c)[4], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3}, "
        "%4, %5, 1, 1, 1, 0, 0;"
        : BATON_FOUR_SUMS(0)
        : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
        : "memory");
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
        "%0, %1, %2, %3}, "
        "%4, %5, 1, 1, 1, 0, 0;"
        : BATON_FOUR_SUMS(0)
        : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
        : "memory");
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyAsync(float (&c)[8], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, 1, 1, 1, 0, 0;"
        : BATON_SUMS(0)
        : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
        : "memory");
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, 1, 1, 1, 0, 0;"
        : BATON_SUMS(0)
        : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
        : "memory");
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyAsync(float (&c)[16], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" BATON_NAMES_16
                 "}, %16, %17, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_16
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {" BATON_NAMES_16
                 "}, %16, %17, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_16
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  }
}
template <typename T>
__device__ __forceinline__ void MultiplyAsync(float (&c)[32], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BATON_NAMES_32
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_32
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BATON_NAMES_32
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : BATON_SUMS_32
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  }
}
// The same, but c becomes the product alone, whatever it was.
template <typename T>
__device__ __forceinline__ void MultiplyAnewAsync(float (&c)[32], const T* a, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BATON_NAMES_32
                 "}, %32, %33, 0, 1, 1, 0, 0;"
                 : BATON_SUMS_32
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BATON_NAMES_32
                 "}, %32, %33, 0, 1, 1, 0, 0;"
                 : BATON_SUMS_32
                 : "l"(TileDescriptor(a)), "l"(TileDescriptor(b))
                 : "memory");
  }
}
// c += a * b of 16 rows of b, which has 64 columns: a is in registers, of which those of mma.sync's
// first operand are a[4 * step] and the next three.
template <typename T, int kOperands>
__device__ __forceinline__ void MultiplyAsync(float (&c)[32], const uint32_t (&a)[kOperands],
                                              int step, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BATON_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : BATON_SUMS_32
                 : "r"(a[4 * step]), "r"(a[4 * step + 1]), "r"(a[4 * step + 2]),
                   "r"(a[4 * step + 3]), "l"(RowsDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BATON_NAMES_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : BATON_SUMS_32
                 : "r"(a[4 * step]), "r"(a[4 * step + 1]), "r"(a[4 * step + 2]),
                   "r"(a[4 * step + 3]), "l"(RowsDescriptor(b))
                 : "memory");
  }
}
// The same where b has 128 columns.
template <typename T, int kOperands>
__device__ __forceinline__ void MultiplyAsync(float (&c)[64], const uint32_t (&a)[kOperands],
                                              int step, const T* b) {
  if constexpr (T::kIsBf16) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BATON_NAMES_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : BATON_SUMS_64
                 : "r"(a[4 * step]), "r"(a[4 * step + 1]), "r"(a[4 * step + 2]),
                   "r"(a[4 * step + 3]), "l"(RowsDescriptor(b))
                 : "memory");
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" BATON_NAMES_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : BATON_SUMS_64
                 : "r"(a[4 * step]), "r"(a[4 * step + 1]), "r"(a[4 * step + 2]),
                   "r"(a[4 * step + 3]), "l"(RowsDescriptor(b))
                 : "memory");
  }
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most so many of the newest groups are in flight.
template <int kPendingGroups>
__device__ __forceinline__ void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPendingGroups) : "memory");
}
// For all of them, or but for the newest: the sums may be touched.
template <int kPendingGroups = 0, int kCount>
__device__ __forceinline__ void FinishSums(float (&sums)[kCount]) {
  WaitProducts<kPendingGroups>();
  PinSums(sums);
}
// For all of them: so may the operands in registers.
template <int kCount, int kOperands>
__device__ __forceinline__ void FinishSums(float (&sums)[kCount], uint32_t (&operands)[kOperands]) {
  FinishSums(sums);
  PinOperands(operands);
}

}  // namespace baton::cuda

#undef BATON_SUMS_128
#undef BATON_SUMS_64
#undef BATON_SUMS_32
#undef BATON_SUMS_16
#undef BATON_NAMES_128
#undef BATON_NAMES_64
#undef BATON_NAMES_32
#undef BATON_NAMES_16
#undef BATON_SUMS
#undef BATON_FOUR_SUMS
