#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace gemm {

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

constexpr int kTileK = 64;
constexpr int kChunk = 8;  // Elements in 16 bytes.
constexpr int kChunks = kTileK / kChunk;

template <typename Shape, typename T>
struct Stages {
  T rows[Shape::kStages][Shape::kRows][kTileK];
  T columns[Shape::kStages][Shape::kColumns][kTileK];
};

// One of the two matrices: [count, k].
template <typename T>
struct Operand {
  const T* data;
  int64_t stride;
  int64_t count;
};

template <typename T>
struct Problem {
  Operand<T> rows;
  Operand<T> columns;
  int64_t k;  // Of a segment: blockIdx.z.
  bool aligned;  // Rows of both begin at multiples of 16 bytes.
  const float* bias;
  bool rows_are_weights;
  void* out;
  // Elements of `out` from row to row, from column to column, and from segment to segment.
  int64_t row_stride;
  int64_t column_stride;
  int64_t segment_stride;
};

// The columns of k of this block's segment.
template <typename T>
BATON_DEVICE Operand<T> SegmentOf(const Operand<T>& whole, int64_t k) {
  return {whole.data + blockIdx.z * k, whole.stride, whole.count};
}

// 16-byte chunks of a tile's row trade places, so that the eight rows that one ldmatrix reads lie
// in different banks.
template <typename T>
BATON_DEVICE T* ChunkOf(T (*tile)[kTileK], int row, int chunk) {
  return &tile[row][(chunk ^ (row & 7)) * kChunk];
}

// Copies rows [first, first + kCount) of columns [k0, k0 + kTileK) of k; what lies outside the
// matrix becomes zero, and is not read.
template <int kCount, int kThreads, typename T>
BATON_DEVICE void LoadTile(T (*tile)[kTileK], const Operand<T>& from, int64_t first, int64_t k0,
                           int64_t k, bool aligned) {
  BATON_UNROLL
  for (int i = 0; i < kCount * kChunks; i += kThreads) {
    const int index = i + static_cast<int>(threadIdx.x);
    if (kCount * kChunks % kThreads != 0 && index >= kCount * kChunks) break;
    const int row = index / kChunks, chunk = index % kChunks;
    const int64_t column = k0 + chunk * kChunk;
    const bool is_row = first + row < from.count;
    const T* source = from.data + (is_row ? (first + row) * from.stride + column : 0);
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

// sums += rows * columns^T over the tile's k, ascending.
template <typename Shape, typename T>
BATON_DEVICE void MultiplyTiles(T (*rows)[kTileK], T (*columns)[kTileK], int warp_row,
                                int warp_column,
                                float (&sums)[Shape::kWarpRows / 16][Shape::kWarpColumns / 8][4]) {
  const int lane = threadIdx.x % 32;
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

template <typename T, typename Out>
BATON_DEVICE void StoreSum(const Problem<T>& problem, int64_t row, int64_t column, float sum) {
  if (row >= problem.rows.count || column >= problem.columns.count) return;
  if (problem.bias != nullptr) sum += problem.bias[problem.rows_are_weights ? row : column];
  static_cast<Out*>(problem.out)[row * problem.row_stride + column * problem.column_stride +
                                 blockIdx.z * problem.segment_stride] = FromFloat<Out>(sum);
}

template <typename Shape, typename T, typename Out>
__global__ void __launch_bounds__(Shape::kThreads, 1) GemmKernel(Problem<T> problem) {
  auto& shared = SharedMemory<Stages<Shape, T>>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / Shape::kWarpsAcross * Shape::kWarpRows;
  const int warp_column = warp % Shape::kWarpsAcross * Shape::kWarpColumns;
  const int64_t first_row = int64_t{blockIdx.x} * Shape::kRows;
  const int64_t first_column = int64_t{blockIdx.y} * Shape::kColumns;
  const int tiles = static_cast<int>((problem.k + kTileK - 1) / kTileK);
  const Operand<T> rows = SegmentOf(problem.rows, problem.k);
  const Operand<T> columns = SegmentOf(problem.columns, problem.k);
  const auto load = [&](int tile) {
    const int stage = tile % Shape::kStages;
    if (tile < tiles) {
      const int64_t k0 = int64_t{tile} * kTileK;
      LoadTile<Shape::kRows, Shape::kThreads>(shared.rows[stage], rows, first_row, k0, problem.k,
                                              problem.aligned);
      LoadTile<Shape::kColumns, Shape::kThreads>(shared.columns[stage], columns, first_column, k0,
                                                 problem.k, problem.aligned);
    }
    CommitCopies();  // Also an empty group: WaitCopies counts them.
  };

  BATON_UNROLL
  for (int tile = 0; tile < Shape::kStages - 1; ++tile) load(tile);
  float sums[Shape::kWarpRows / 16][Shape::kWarpColumns / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    WaitCopies<Shape::kStages - 2>();
    __syncthreads();  // The tile is there, and nobody reads the one that is overwritten next.
    load(tile + Shape::kStages - 1);
    const int stage = tile % Shape::kStages;
    MultiplyTiles<Shape>(shared.rows[stage], shared.columns[stage], warp_row, warp_column, sums);
  }
  WaitCopies<0>();

  BATON_UNROLL
  for (int i = 0; i < Shape::kWarpRows / 16; ++i) {
    BATON_UNROLL
    for (int j = 0; j < Shape::kWarpColumns / 8; ++j) {
      const int64_t row = first_row + warp_row + 16 * i + lane / 4;
      const int64_t column = first_column + warp_column + 8 * j + lane % 4 * 2;
      BATON_UNROLL
      for (int c = 0; c < 4; ++c) {
        StoreSum<T, Out>(problem, row + c / 2 * 8, column + c % 2, sums[i][j][c]);
      }
    }
  }
}

}  // namespace gemm

namespace {

using gemm::TileShape;

// Prompts: tokens are rows. Few tokens: weights are rows, and are read once.
using ManyTokens = TileShape<128, 128, 64, 32, 3>;
using SomeTokens = TileShape<64, 64, 32, 32, 4>;
using FewTokens = TileShape<64, 16, 16, 16, 4>;

bool IsAligned(ConstFloats matrix, int64_t stride) {
  return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && stride % gemm::kChunk == 0;
}

template <typename Shape, typename T, typename Out>
cudaError_t LaunchGemm(const GemmArgs& args, bool tokens_are_rows, cudaStream_t stream) {
  const gemm::Operand<T> tokens{static_cast<const T*>(args.a.data), args.a_stride, args.m};
  const PackedMatrix& packed = *args.weights;
  const gemm::Operand<T> weights{static_cast<const T*>(FloatsOf(packed).data),
                                 RowStride(packed.k()), packed.n()};
  const gemm::Problem<T> problem{
      .rows = tokens_are_rows ? tokens : weights,
      .columns = tokens_are_rows ? weights : tokens,
      .k = packed.k() / args.segments,
      .aligned = IsAligned(args.a, args.a_stride) && IsAligned(FloatsOf(packed), weights.stride),
      .bias = args.bias,
      .rows_are_weights = !tokens_are_rows,
      .out = args.out.data,
      .row_stride = tokens_are_rows ? args.out_stride : 1,
      .column_stride = tokens_are_rows ? 1 : args.out_stride,
      .segment_stride = args.m * args.out_stride};
  const dim3 grid(BlocksFor(problem.rows.count, Shape::kRows),
                  BlocksFor(problem.columns.count, Shape::kColumns),
                  static_cast<unsigned>(args.segments));
  return Launch(gemm::GemmKernel<Shape, T, Out>, grid, Shape::kThreads,
                sizeof(gemm::Stages<Shape, T>), stream, problem);
}

template <typename T, typename Out>
cudaError_t ChooseTile(const GemmArgs& args, cudaStream_t stream) {
  if (args.m <= FewTokens::kColumns) return LaunchGemm<FewTokens, T, Out>(args, false, stream);
  if (args.m <= SomeTokens::kColumns) return LaunchGemm<SomeTokens, T, Out>(args, false, stream);
  return LaunchGemm<ManyTokens, T, Out>(args, true, stream);
}

// The sums of the segments one beside the other in `scratch`, then their tree; so many rows at a
// time as have room there.
template <typename T>
cudaError_t MultiplySegments(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream) {
  const int64_t n = args.weights->n();
  const int64_t most = std::ssize(scratch) / (args.segments * n);
  if (most == 0) return cudaErrorMemoryAllocation;
  for (int64_t row = 0; row < args.m; row += most) {
    GemmArgs sums = args;
    sums.a = args.a.At(row * args.a_stride);
    sums.m = std::min(most, args.m - row);
    sums.bias = nullptr;
    sums.out = scratch.data();
    sums.out_stride = n;
    const cudaError_t multiplied = ChooseTile<T, float>(sums, stream);
    if (multiplied != cudaSuccess) return multiplied;
    FoldPartialsArgs fold{.num_parts = args.segments,
                          .num_tokens = sums.m,
                          .dim = n,
                          .bias = args.bias,
                          .out = args.out.At(row * args.out_stride),
                          .out_stride = args.out_stride};
    for (int32_t s = 0; s < args.segments; ++s) fold.parts[s] = scratch.data() + s * sums.m * n;
    const cudaError_t folded = FoldPartials(fold, stream);
    if (folded != cudaSuccess) return folded;
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t ChooseOut(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream) {
  if (args.out.dtype != DType::kF32 && args.out.dtype != T::kDType) return cudaErrorInvalidValue;
  if (args.segments > 1) return MultiplySegments<T>(args, scratch, stream);
  if (args.out.dtype == DType::kF32) return ChooseTile<T, float>(args, stream);
  return ChooseTile<T, T>(args, stream);
}

}  // namespace

cudaError_t Gemm(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream) {
  const PackedMatrix& weights = *args.weights;
  if (weights.format() != WeightFormat::kCuda || args.a.dtype != weights.dtype()) {
    return cudaErrorInvalidValue;
  }
  if (args.m == 0 || weights.n() == 0) return cudaSuccess;
  if (args.a.dtype == DType::kBF16) return ChooseOut<Bf16>(args, scratch, stream);
  if (args.a.dtype == DType::kF16) return ChooseOut<F16>(args, scratch, stream);
  return cudaErrorInvalidValue;
}

}  // namespace baton::cuda
