#pragma once

// What a kernel file includes: CUDA C++ and a few functions over PTX. nvcc takes them as they are;
// any other compiler takes the emulation (kernels/emulation), under which the tests run the very
// same files; host code of a build for devices (BATON_CUDA=ON) takes CUDA's own header. For that,
// kernels keep these rules:
// - PTX and the extensions of nvcc (<<<>>>, __shared__) stand in dialect_nvcc.h alone.
// - Shared memory is one struct: auto& s = SharedMemory<Layout>(), launched with sizeof(Layout).
// - A kernel is launched by Launch(kernel, grid, block, shared_bytes, stream, arguments...), and
//   stands in a named namespace, so that messages can name it.
// - No plain flags between threads, and no trust in a warp that runs in step: those are races.
// - Fragments are passed by reference to arrays, vectors of memory as uint4, uint2, float4, float2.
// - Arithmetic says where it fuses: fmaf(). The compilers are told not to.
#if defined(__CUDACC__)
#include "kernels/cuda/dialect_nvcc.h"
#elif defined(BATON_CUDA_DEVICE)
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#define BATON_UNROLL
#define BATON_ROLLED
// What only the emulation wants to know (kernels/emulation/cuda_api.h).
namespace baton::cuda {
inline constexpr int64_t kSliceGap = 0;
inline void BeginSlice(void*, size_t) {}
inline void EndSlice(void*) {}
}  // namespace baton::cuda
#else
#include "kernels/emulation/kernel_language.h"
#endif
