#include "kernels/emulation/tensor_map.h"

#include <algorithm>

namespace baton::emulation {
namespace {

constexpr int64_t kChunkBytes = 16;
constexpr int64_t kRowBytes = 128;
constexpr int kElementBytes = 2;

}  // namespace

int64_t TensorMap::BoxBytes() const {
  int64_t bytes = kElementBytes;
  for (int i = 0; i < rank; ++i) bytes *= box[i];
  return bytes;
}

cudaError_t EncodeTensorMap(TensorMap& map, const void* data, std::span<const uint64_t> sizes,
                            std::span<const uint64_t> strides, std::span<const uint32_t> box) {
  map = {.data = static_cast<const std::byte*>(data), .rank = static_cast<int>(sizes.size())};
  if (map.rank > TensorMap::kMostDims || strides.size() + 1 != sizes.size() ||
      box.size() != sizes.size()) {
    return cudaErrorInvalidValue;
  }
  map.strides[0] = kElementBytes;
  std::ranges::copy(sizes, map.sizes.begin());
  std::ranges::copy(strides, map.strides.begin() + 1);
  std::ranges::copy(box, map.box.begin());
  bool ok = data != nullptr && reinterpret_cast<uintptr_t>(data) % kChunkBytes == 0;
  for (const uint64_t size : sizes) ok &= size >= 1 && size <= uint64_t{1} << 32;
  for (const uint64_t stride : strides) ok &= stride % kChunkBytes == 0 && stride >> 40 == 0;
  for (const uint32_t count : box) ok &= count >= 1 && count <= 256;
  const int64_t row_bytes = int64_t{map.box[0]} * kElementBytes;
  ok &= row_bytes % kChunkBytes == 0 && row_bytes <= kRowBytes;
  return ok ? cudaSuccess : cudaErrorInvalidValue;
}

void ForEachChunk(const TensorMap& map, std::byte* to,
                  const std::array<int32_t, TensorMap::kMostDims>& first, ChunkBody body) {
  const int64_t row_bytes = int64_t{map.box[0]} * kElementBytes;
  const int64_t rows = map.BoxBytes() / row_bytes;
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* from = map.data;
    bool is_inside = true;
    int64_t rest = row;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t place = first[i] + rest % map.box[i];
      rest /= map.box[i];
      is_inside &= place >= 0 && static_cast<uint64_t>(place) < map.sizes[i];
      from += place * static_cast<int64_t>(map.strides[i]);
    }
    for (int64_t at = 0; at < row_bytes; at += kChunkBytes) {
      const int64_t element = first[0] + at / kElementBytes;
      const int64_t left = (static_cast<int64_t>(map.sizes[0]) - element) * kElementBytes;
      const int64_t live =
          is_inside && element >= 0 ? std::clamp<int64_t>(left, 0, kChunkBytes) : 0;
      const uintptr_t plain = reinterpret_cast<uintptr_t>(to) + row * row_bytes + at;
      body(reinterpret_cast<std::byte*>(Swizzled(plain)), from + element * kElementBytes,
           static_cast<int>(live));
    }
  }
}

}  // namespace baton::emulation
