#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "kernels/emulation/cuda_api.h"

namespace baton::emulation {

// What a tensor copy is told of global memory: an array of 16-bit elements, and the box of it that
// one copy takes. A row of the box has 128 bytes at most; its 16-byte chunks trade places by bits 7
// to 9 of their address in shared memory (the 128-byte swizzle). Outside the array are zeros.
struct TensorMap {
  static constexpr int kMostDims = 5;

  const std::byte* data = nullptr;
  int rank = 0;
  std::array<uint64_t, kMostDims> sizes = {};
  std::array<uint64_t, kMostDims> strides = {};  // Bytes; of the first dimension 2.
  std::array<uint32_t, kMostDims> box = {};

  int64_t BoxBytes() const;
};

// With the limits of cuTensorMapEncodeTiled: data and strides are multiples of 16 bytes, strides
// below 2^40, sizes from 1 to 2^32, boxes from 1 to 256, their rows multiples of 16 bytes up to
// 128. `strides` are those of all dimensions but the first.
cudaError_t EncodeTensorMap(TensorMap& map, const void* data, std::span<const uint64_t> sizes,
                            std::span<const uint64_t> strides, std::span<const uint32_t> box);

// For each 16 bytes of the box whose first element has these coordinates: where they go in shared
// memory, whence they come, and how many of them lie in the array.
using ChunkBody = absl::FunctionRef<void(std::byte* to, const std::byte* from, int live_bytes)>;
void ForEachChunk(const TensorMap& map, std::byte* to,
                  const std::array<int32_t, TensorMap::kMostDims>& first, ChunkBody body);

// The address that the swizzle gives to one in shared memory.
inline uintptr_t Swizzled(uintptr_t address) { return address ^ (address >> 7 & 7) << 4; }

}  // namespace baton::emulation
