#pragma once

// CUDA C++ as kernels/cuda/dialect.h needs it, for a compiler that knows none: the keywords, the
// built-in variables and functions under their own names, and the dialect's own functions, which
// kernels/cuda/dialect_nvcc.h has as PTX.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"
#include "kernels/emulation/intrinsics.h"
#include "kernels/emulation/tensor_core.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define BATON_UNROLL  // A matter of registers, of which there are none here.
#define BATON_ROLLED
#define threadIdx (::baton::emulation::CurrentPosition().thread)
#define blockIdx (::baton::emulation::CurrentPosition().block)
#define gridDim (::baton::emulation::CurrentPosition().grid_dim)
#define blockDim (::baton::emulation::CurrentPosition().block_dim)
// Where the call stands, for messages and for what must be the same call in all threads.
#define BATON_SITE ::baton::emulation::Site site = ::baton::emulation::Site::current()

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline void __syncthreads(BATON_SITE) { ::baton::emulation::SyncThreads(site); }
inline void __syncwarp(uint32_t mask = ~0u, BATON_SITE) {
  ::baton::emulation::SyncWarp(mask, site);
}
inline void __threadfence() { ::baton::emulation::ThreadFence(); }

namespace baton::emulation {
template <typename T>
T ShuffleAs(ShuffleKind kind, uint32_t mask, T value, int argument, int width, const Site& site) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(kind, mask, bits, argument, width, site);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace baton::emulation
template <typename T>
T __shfl_sync(uint32_t mask, T value, int lane, int width = 32, BATON_SITE) {
  using baton::emulation::ShuffleKind;
  return ::baton::emulation::ShuffleAs(ShuffleKind::kIndex, mask, value, lane, width, site);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, int by, int width = 32, BATON_SITE) {
  using baton::emulation::ShuffleKind;
  return ::baton::emulation::ShuffleAs(ShuffleKind::kUp, mask, value, by, width, site);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, int by, int width = 32, BATON_SITE) {
  using baton::emulation::ShuffleKind;
  return ::baton::emulation::ShuffleAs(ShuffleKind::kDown, mask, value, by, width, site);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int by, int width = 32, BATON_SITE) {
  using baton::emulation::ShuffleKind;
  return ::baton::emulation::ShuffleAs(ShuffleKind::kXor, mask, value, by, width, site);
}
inline uint32_t __ballot_sync(uint32_t mask, bool predicate, BATON_SITE) {
  return ::baton::emulation::Ballot(mask, predicate, site);
}
inline bool __any_sync(uint32_t mask, bool predicate, BATON_SITE) {
  return ::baton::emulation::Ballot(mask, predicate, site) != 0;
}

template <typename T>
__attribute__((noinline, no_sanitize("thread"))) T atomicAdd(T* p, std::type_identity_t<T> value,
                                                             BATON_SITE) {
  ::baton::emulation::CheckAtomic(p, sizeof(T), site);
  const T old = *p;
  *p = old + value;
  return old;
}
template <typename T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMax(T* p, std::type_identity_t<T> value,
                                                             BATON_SITE) {
  ::baton::emulation::CheckAtomic(p, sizeof(T), site);
  const T old = *p;
  *p = std::max(old, value);
  return old;
}
template <typename T>
__attribute__((noinline, no_sanitize("thread"))) T atomicExch(T* p, std::type_identity_t<T> value,
                                                              BATON_SITE) {
  ::baton::emulation::CheckAtomic(p, sizeof(T), site);
  const T old = *p;
  *p = value;
  return old;
}
// Counts up to `most`, and begins anew behind it.
__attribute__((noinline, no_sanitize("thread"))) inline uint32_t atomicInc(uint32_t* p,
                                                                           uint32_t most,
                                                                           BATON_SITE) {
  ::baton::emulation::CheckAtomic(p, sizeof(*p), site);
  const uint32_t old = *p;
  *p = old >= most ? 0 : old + 1;
  return old;
}
// The place of the lowest bit, counted from 1.
inline int __ffs(int x) { return __builtin_ffs(x); }
// Of the eight bytes of (low, high), one for each of the selector's lowest four nibbles.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    bytes |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return bytes;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

namespace baton::cuda {

// Of CUDA, for all pairs of types.
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  return a > b ? a : b;
}

// The arguments lie in memory of the host, which a kernel may not read: only copies reach it.
template <typename... Parameters>
class BoundKernel final : public emulation::KernelCall {
 public:
  BoundKernel(void (*kernel)(Parameters...), std::tuple<Parameters...> arguments)
      : kernel_(kernel), arguments_(std::move(arguments)) {}

  __attribute__((noinline, no_sanitize("thread"))) void Run() const override {
    RunWith(std::index_sequence_for<Parameters...>());
  }

 private:
  template <size_t... kIndex>
  __attribute__((noinline, no_sanitize("thread"))) void RunWith(
      std::index_sequence<kIndex...>) const {
    kernel_(std::get<kIndex>(arguments_)...);
  }

  void (*kernel_)(Parameters...);
  std::tuple<Parameters...> arguments_;
};

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  return emulation::Launch(
      reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
      std::make_unique<BoundKernel<Parameters...>>(
          kernel, std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)));
}

template <typename T>
T& SharedMemory(BATON_SITE) {
  return *static_cast<T*>(emulation::SharedMemoryOf(sizeof(T), site));
}
inline float Exp2(float x) { return exp2f(x); }
inline float Log2(float x) { return log2f(x); }
template <typename T>
uint32_t RoundPair(float low, float high) {
  return emulation::RoundToHalf(T::kIsBf16, low) | emulation::RoundToHalf(T::kIsBf16, high) << 16;
}
template <typename T>
uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t bits) { return emulation::HalfToFloat(T::kIsBf16, bits); };
  return RoundPair<T>(half(a) * half(b), half(a >> 16) * half(b >> 16));
}
inline void LoadMatrices(uint32_t (&out)[4], const void* row, BATON_SITE) {
  emulation::LoadMatrices(out, row, /*transposed=*/false, site);
}
inline void LoadMatricesTransposed(uint32_t (&out)[4], const void* row, BATON_SITE) {
  emulation::LoadMatrices(out, row, /*transposed=*/true, site);
}
template <typename T>
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, BATON_SITE) {
  emulation::MultiplyAdd(T::kIsBf16, c, a, b0, b1, site);
}
inline void CopyAsync(void* to, const void* from, bool live, BATON_SITE) {
  emulation::CopyAsync(to, from, live, site);
}
inline void CommitCopies() { emulation::CommitCopies(); }
template <int kPendingGroups>
void WaitCopies() {
  emulation::WaitCopies(kPendingGroups);
}

}  // namespace baton::cuda
