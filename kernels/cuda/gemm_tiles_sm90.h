#pragma once

// What products of sm_90a share: the ring of tiles that copies fill, and how copies see a matrix.

#include <array>
#include <cstdint>

#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/gemm_tiles.h"
#include "kernels/cuda/ring.h"

namespace baton::cuda::gemm_sm90 {

constexpr int kWarpgroup = 128;
constexpr int kTile = 128;                 // Tokens, and weights, of a block of GemmSm90.
constexpr int kSms = 132;                  // Of an H100 and an H200.
constexpr size_t kMostShared = 227 << 10;  // Of a block of sm_90.

// [rows, k] as (k of a segment, segment, row), in boxes of kTileK of one segment: behind a
// segment's end are zeros.
inline cudaError_t MapOf(TensorMap& map, const void* data, int64_t rows, int64_t stride, int64_t k,
                         int32_t segments, uint32_t box_rows) {
  const auto of = [](int64_t x) { return static_cast<uint64_t>(x); };
  const std::array sizes = {of(k / segments), of(segments), of(rows)};
  // A single segment lies anywhere, but k may be no multiple of 16 bytes, which its stride must be.
  const std::array strides = {of(segments == 1 ? stride * 2 : k / segments * 2), of(stride * 2)};
  const std::array<uint32_t, 3> box = {gemm::kTileK, 1, box_rows};
  return EncodeTensorMap(map, data, sizes, strides, box);
}

// [2, rows, k], gates and then ups, as (k, row, gate or up): a box has its rows of both.
inline cudaError_t MapOfGates(TensorMap& map, const void* data, int64_t rows, int64_t stride,
                              int64_t k, uint32_t box_rows) {
  const auto of = [](int64_t x) { return static_cast<uint64_t>(x); };
  const std::array sizes = {of(k), of(rows), uint64_t{2}};
  const std::array strides = {of(stride * 2), of(rows * stride * 2)};
  const std::array<uint32_t, 3> box = {gemm::kTileK, box_rows, 2};
  return EncodeTensorMap(map, data, sizes, strides, box);
}

}  // namespace baton::cuda::gemm_sm90
