#pragma once

// kernels/cuda/dialect_sm90.h for a compiler that knows no CUDA; kernels/cuda/dialect_sm90_nvcc.h
// has the same as PTX.

#include <array>
#include <cstdint>
#include <span>

#include "kernels/emulation/block_runner.h"
#include "kernels/emulation/cluster.h"
#include "kernels/emulation/kernel_language.h"
#include "kernels/emulation/tensor_map.h"
#include "kernels/emulation/warpgroup.h"

namespace baton::cuda {

using emulation::EncodeTensorMap;
using emulation::FenceProxy;
using emulation::TensorMap;

struct Mbarrier {
  uint64_t bits;
};

inline void InitMbarrier(Mbarrier& barrier, int arrivals, BATON_SITE) {
  emulation::TheRunner().mbarriers().Init(&barrier, arrivals, site);
}
inline void Arrive(Mbarrier& barrier, BATON_SITE) {
  emulation::TheRunner().mbarriers().Arrive(&barrier, 0, site);
}
inline void ArriveExpecting(Mbarrier& barrier, int bytes, BATON_SITE) {
  emulation::TheRunner().mbarriers().Arrive(&barrier, bytes, site);
}
inline void Wait(Mbarrier& barrier, uint32_t parity, BATON_SITE) {
  emulation::TheRunner().mbarriers().Wait(&barrier, parity, site);
}
inline void CopyBox(void* to, const TensorMap& map, Mbarrier& barrier, int x, int y, int z,
                    BATON_SITE) {
  emulation::TheRunner().mbarriers().Copy(to, map, &barrier, {x, y, z}, site);
}
inline void CopyBox(void* to, const TensorMap& map, Mbarrier& barrier, int x, int y, int z, int w,
                    BATON_SITE) {
  emulation::TheRunner().mbarriers().Copy(to, map, &barrier, {x, y, z, w}, site);
}

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchClusters(void (*kernel)(Parameters...), int blocks, dim3 grid, dim3 block,
                           size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  return emulation::Launch(
      reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
      std::make_unique<BoundKernel<Parameters...>>(
          kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)),
      blocks);
}
inline void ArriveCluster(BATON_SITE) { emulation::TheRunner().cluster_barrier().Arrive(site); }
inline void WaitCluster(BATON_SITE) { emulation::TheRunner().cluster_barrier().Wait(site); }
inline void StoreRemote(float4& place, int block, float4 value, BATON_SITE) {
  emulation::StoreRemote(&place, block, &value, site);
}

// Of registers there are enough.
template <int kCount>
void GiveRegisters() {}
template <int kCount>
void TakeRegisters() {}

template <int kCount>
void FenceSums(float (&sums)[kCount], BATON_SITE) {
  emulation::FenceSums(sums, kCount, site);
}
template <int kCount, int kOperands>
void FenceSums(float (&sums)[kCount], uint32_t (&operands)[kOperands], BATON_SITE) {
  emulation::FenceOperands(operands, kOperands);
  emulation::FenceSums(sums, kCount, site);
}
template <typename T, int kCount>
void MultiplyAsync(float (&sums)[kCount], const T* a, const T* b, BATON_SITE) {
  emulation::MultiplyAsync(T::kIsBf16, 2 * kCount, sums, true, a, b, site);
}
template <typename T, int kCount>
void MultiplyAnewAsync(float (&sums)[kCount], const T* a, const T* b, BATON_SITE) {
  emulation::MultiplyAsync(T::kIsBf16, 2 * kCount, sums, false, a, b, site);
}
template <typename T, int kCount, int kOperands>
void MultiplyAsync(float (&sums)[kCount], const uint32_t (&a)[kOperands], int step, const T* b,
                   BATON_SITE) {
  emulation::MultiplyAsync(T::kIsBf16, 2 * kCount, sums, {a, kOperands, 4 * step}, b, site);
}
inline void CommitProducts(BATON_SITE) { emulation::CommitProducts(site); }
template <int kPendingGroups>
void WaitProducts(BATON_SITE) {
  emulation::WaitProducts(kPendingGroups, site);
}
template <int kPendingGroups = 0, int kCount>
void FinishSums(float (&)[kCount], BATON_SITE) {
  emulation::WaitProducts(kPendingGroups, site);
}
template <int kCount, int kOperands>
void FinishSums(float (&sums)[kCount], uint32_t (&)[kOperands], BATON_SITE) {
  FinishSums(sums, site);
}

}  // namespace baton::cuda
