#pragma once

// Products of two matrices of rows on tensor cores, tile by tile. Each output starts from zero and
// adds its products in steps of 16 of k, ascending, whatever the tile's shape is.

#include "kernels/api/operands.h"
#include "kernels/cuda/floats.h"

namespace baton::cuda::gemm {

// A block computes a tile of kRows x kColumns outputs, a warp kWarpRows x kWarpColumns of it. Rows
// are the 16-high side of an mma, columns the 8-wide one. Either may be the weights: both operands
// are [rows, k], and a product of two numbers does not care which comes first.
template <int kRows_, int kColumns_, int kWarpRows_, int kWarpColumns_, int kStages_>
struct TileShape {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kWarpRows = kWarpRows_, kWarpColumns = kWarpColumns_;
  static constexpr int kStages = kStages_;  // Tiles of k in shared memory at a time.
  static constexpr int kWarpsAcross = kColumns / kWarpColumns;
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * kWarpsAcross;
};

// Prompts: tokens are rows. Few tokens: weights are rows, and are read once.
using ManyTokens = TileShape<128, 128, 64, 32, 3>;
using SomeTokens = TileShape<64, 64, 32, 32, 4>;
using FewTokens = TileShape<64, 16, 16, 16, 4>;

constexpr int kTileK = 64;
constexpr int kChunk = 8;  // Elements in 16 bytes.
constexpr int kChunks = kTileK / kChunk;

template <typename Shape, typename T>
struct Stages {
  T rows[Shape::kStages][Shape::kRows][kTileK];
  T columns[Shape::kStages][Shape::kColumns][kTileK];
};

// Whether each row begins at 16 bytes.
inline bool IsAligned(ConstFloats matrix, int64_t stride) {
  return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && stride % kChunk == 0;
}

// What a thread holds of a tile.
template <typename Shape>
using Sums = float[Shape::kWarpRows / 16][Shape::kWarpColumns / 8][4];

// One of the two matrices: [count, k].
template <typename T>
struct Operand {
  const T* data;
  int64_t stride;
  int64_t count;

  BATON_DEVICE int64_t PlaceOf(int row) const { return row * stride; }
  // Without the rows before `first`.
  BATON_DEVICE Operand From(int64_t first) const {
    return {data + first * stride, stride, count - first};
  }
};

// Rows of a matrix in an order of their own: `rows`, in shared memory.
template <typename T>
struct ChosenRows {
  const T* data;
  int64_t stride;
  int64_t count;
  const int32_t* rows;

  BATON_DEVICE int64_t PlaceOf(int row) const { return rows[row] * stride; }
};

// 16-byte chunks of a tile's row trade places, so that the eight rows that one ldmatrix reads lie
// in different banks.
template <typename T>
BATON_DEVICE T* ChunkOf(T (*tile)[kTileK], int row, int chunk) {
  return &tile[row][(chunk ^ (row & 7)) * kChunk];
}

// Copies the first kCount rows, columns [k0, k0 + kTileK) of k; what lies outside the matrix
// becomes zero, and is not read.
template <int kCount, int kThreads, typename T, typename Matrix>
BATON_DEVICE void LoadTile(T (*tile)[kTileK], const Matrix& from, int64_t k0, int64_t k,
                           bool aligned) {
  BATON_UNROLL
  for (int i = 0; i < kCount * kChunks; i += kThreads) {
    const int index = i + static_cast<int>(threadIdx.x);
    if (kCount * kChunks % kThreads != 0 && index >= kCount * kChunks) break;
    const int row = index / kChunks, chunk = index % kChunks;
    const int64_t column = k0 + chunk * kChunk;
    const bool is_row = row < from.count;
    const T* source = from.data + (is_row ? from.PlaceOf(row) + column : 0);
    T* const to = ChunkOf(tile, row, chunk);
    if (aligned && column + kChunk <= k) {
      CopyAsync(to, source, is_row);
    } else {
      T values[kChunk];
      for (int j = 0; j < kChunk; ++j) values[j] = is_row && column + j < k ? source[j] : T{0};
      uint4 raw;
      memcpy(&raw, values, sizeof(raw));
      *reinterpret_cast<uint4*>(to) = raw;
    }
  }
}

// Where this thread's warp begins in the block's tile.
template <typename Shape>
BATON_DEVICE int WarpRow() {
  return static_cast<int>(threadIdx.x) / 32 / Shape::kWarpsAcross * Shape::kWarpRows;
}
template <typename Shape>
BATON_DEVICE int WarpColumn() {
  return static_cast<int>(threadIdx.x) / 32 % Shape::kWarpsAcross * Shape::kWarpColumns;
}

// sums += rows * columns^T over the tile's k, ascending.
template <typename Shape, typename T>
BATON_DEVICE void MultiplyTiles(T (*rows)[kTileK], T (*columns)[kTileK], Sums<Shape>& sums) {
  const int lane = threadIdx.x % 32;
  const int warp_row = WarpRow<Shape>(), warp_column = WarpColumn<Shape>();
  BATON_UNROLL
  for (int step = 0; step < kTileK / 16; ++step) {
    uint32_t a[Shape::kWarpRows / 16][4], b[Shape::kWarpColumns / 16][4];
    BATON_UNROLL
    for (int i = 0; i < Shape::kWarpRows / 16; ++i) {
      LoadMatrices(a[i], ChunkOf(rows, warp_row + 16 * i + lane % 16, 2 * step + lane / 16));
    }
    BATON_UNROLL
    for (int j = 0; j < Shape::kWarpColumns / 16; ++j) {
      LoadMatrices(b[j], ChunkOf(columns, warp_column + 16 * j + lane % 8 + lane / 16 * 8,
                                 2 * step + lane / 8 % 2));
    }
    BATON_UNROLL
    for (int i = 0; i < Shape::kWarpRows / 16; ++i) {
      BATON_UNROLL
      for (int j = 0; j < Shape::kWarpColumns / 8; ++j) {
        MultiplyAdd<T>(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

// sums += rows * columns^T, of the first rows of both that the tile has room for. `aligned`: rows
// of both begin at multiples of 16 bytes.
template <typename Shape, typename T, typename Rows, typename Columns>
BATON_DEVICE void Multiply(Stages<Shape, T>& shared, const Rows& rows, const Columns& columns,
                           int64_t k, bool aligned, Sums<Shape>& sums) {
  const int tiles = static_cast<int>((k + kTileK - 1) / kTileK);
  const auto load = [&](int tile) {
    const int stage = tile % Shape::kStages;
    if (tile < tiles) {
      const int64_t k0 = int64_t{tile} * kTileK;
      LoadTile<Shape::kRows, Shape::kThreads>(shared.rows[stage], rows, k0, k, aligned);
      LoadTile<Shape::kColumns, Shape::kThreads>(shared.columns[stage], columns, k0, k, aligned);
    }
    CommitCopies();  // Also an empty group: WaitCopies counts them.
  };

  BATON_ROLLED  // What loads a tile is most of the kernel's code.
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) load(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    WaitCopies<Shape::kStages - 2>();
    __syncthreads();  // The tile is there, and nobody reads the one that is overwritten next.
    load(tile + Shape::kStages - 1);
    const int stage = tile % Shape::kStages;
    MultiplyTiles<Shape>(shared.rows[stage], shared.columns[stage], sums);
  }
  WaitCopies<0>();
}

// store(row, column, sum) for each of this thread's outputs, by its place in the block's tile.
template <typename Shape, typename Store>
BATON_DEVICE void StoreSums(const Sums<Shape>& sums, const Store& store) {
  const int lane = threadIdx.x % 32;
  BATON_UNROLL
  for (int i = 0; i < Shape::kWarpRows / 16; ++i) {
    BATON_UNROLL
    for (int j = 0; j < Shape::kWarpColumns / 8; ++j) {
      const int row = WarpRow<Shape>() + 16 * i + lane / 4;
      const int column = WarpColumn<Shape>() + 8 * j + lane % 4 * 2;
      BATON_UNROLL
      for (int c = 0; c < 4; ++c) store(row + c / 2 * 8, column + c % 2, sums[i][j][c]);
    }
  }
}

}  // namespace baton::cuda::gemm
