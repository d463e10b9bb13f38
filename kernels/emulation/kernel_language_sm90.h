#pragma once

// kernels/cuda/dialect_sm90.h for a compiler that knows no CUDA; kernels/cuda/dialect_sm90_nvcc.h
// has the same as PTX.

#include <array>
#include <cstdint>
#include <span>

#include "kernels/emulation/block_runner.h"
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

// Of registers there are enough.
template <int kCount>
void GiveRegisters() {}
template <int kCount>
void TakeRegisters() {}

template <int kCount>
void FenceSums(float (&sums)[kCount], BATON_SITE) {
  emulation::FenceSums(sums, kCount, site);
}
template <typename T, int kCount>
void MultiplyAsync(float (&sums)[kCount], const T* a, const T* b, BATON_SITE) {
  emulation::MultiplyAsync(T::kIsBf16, 2 * kCount, sums, a, b, site);
}
inline void CommitProducts(BATON_SITE) { emulation::CommitProducts(site); }
template <int kPendingGroups>
void WaitProducts(BATON_SITE) {
  emulation::WaitProducts(kPendingGroups, site);
}
template <int kCount>
void FinishSums(float (&)[kCount], BATON_SITE) {
  emulation::WaitProducts(0, site);
}

}  // namespace baton::cuda
