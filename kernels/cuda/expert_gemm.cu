#include "kernels/cuda/expert_gemm.h"

#include <algorithm>

#include "kernels/cuda/gemm_tiles.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace expert_gemm {

using gemm::Operand;

// The experts of one launch, whose addresses are arguments of the kernel: no block has fewer
// threads, of which each looks at one of them.
constexpr int kExperts = 128;

template <typename T>
struct Problem {
  const T* weights[kExperts];
  int64_t weight_stride;
  int64_t n;
  int64_t k;  // Of a segment.
  const float* bias;  // Of the first of them, or null.
  const int32_t* offsets;
  int num_experts;
  const T* a;
  int64_t a_stride;
  const int32_t* row_order;
  int64_t top_k;
  bool aligned;  // Rows of both operands begin at multiples of 16 bytes.
  void* out;
  int64_t out_stride;
  int64_t segment_stride;
};

// Neighbouring rows of one expert.
struct RowTile {
  int expert;
  int first;
  int count;  // 0: this block has none.
};

struct Search {
  int warp_tiles[kExperts / 32];
  RowTile found;
};

template <typename Shape, typename T, int kTokens>
struct Shared {
  gemm::Stages<Shape, T> stages;
  Search search;
  int32_t rows[kTokens];  // Of `a`.
};

// Tile blockIdx.x of those that the experts' rows are cut into, expert by expert.
template <int kTokens>
BATON_DEVICE RowTile FindTile(const int32_t* offsets, int num_experts, Search& search) {
  const int expert = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int first = 0, end = 0;
  if (expert < num_experts) {
    first = offsets[expert];
    end = offsets[expert + 1];
  }
  const int tiles = (end - first + kTokens - 1) / kTokens;
  int until = tiles;  // The end of this expert's tiles.
  BATON_UNROLL
  for (int by = 1; by < 32; by *= 2) {
    const int before = __shfl_up_sync(~0u, until, by);
    if (lane >= by) until += before;
  }
  if (expert == 0) search.found = {};
  if (lane == 31 && warp < kExperts / 32) search.warp_tiles[warp] = until;
  __syncthreads();
  BATON_UNROLL
  for (int w = 0; w < kExperts / 32; ++w) {
    if (w < warp) until += search.warp_tiles[w];
  }
  const int wanted = static_cast<int>(blockIdx.x);
  if (wanted >= until - tiles && wanted < until) {
    const int at = first + (wanted - until + tiles) * kTokens;
    search.found = {expert, at, min(kTokens, end - at)};
  }
  __syncthreads();
  return search.found;
}

// Grid: tiles of rows, tiles of n, segments of k.
template <typename Shape, bool kTokensAreRows, typename T, typename Out>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    ExpertGemmKernel(const __grid_constant__ Problem<T> problem) {
  constexpr int kTokens = kTokensAreRows ? Shape::kRows : Shape::kColumns;
  constexpr int kOutputs = kTokensAreRows ? Shape::kColumns : Shape::kRows;
  auto& shared = SharedMemory<Shared<Shape, T, kTokens>>();
  const RowTile tile = FindTile<kTokens>(problem.offsets, problem.num_experts, shared.search);
  if (tile.count == 0) return;
  const int64_t first_output = int64_t{blockIdx.y} * kOutputs, first_k = blockIdx.z * problem.k;
  for (int i = threadIdx.x; i < tile.count; i += Shape::kThreads) {
    const int row = tile.first + i;
    shared.rows[i] = problem.row_order == nullptr
                         ? row
                         : static_cast<int32_t>(problem.row_order[row] / problem.top_k);
  }
  __syncthreads();
  const gemm::ChosenRows<T> tokens{problem.a + first_k, problem.a_stride, tile.count, shared.rows};
  const Operand<T> matrix{problem.weights[tile.expert] + first_k, problem.weight_stride, problem.n};
  const Operand<T> weights = matrix.From(first_output);
  Out* const out = static_cast<Out*>(problem.out) + blockIdx.z * problem.segment_stride;
  gemm::Sums<Shape> sums = {};
  if constexpr (kTokensAreRows) {
    gemm::Multiply<Shape>(shared.stages, tokens, weights, problem.k, problem.aligned, sums);
  } else {
    gemm::Multiply<Shape>(shared.stages, weights, tokens, problem.k, problem.aligned, sums);
  }
  gemm::StoreSums<Shape>(sums, [&](int row, int column, float sum) {
    const int token = kTokensAreRows ? row : column;
    const int64_t output = first_output + (kTokensAreRows ? column : row);
    if (token >= tile.count || output >= problem.n) return;
    if (problem.bias != nullptr) sum += problem.bias[tile.expert * problem.n + output];
    out[(tile.first + token) * problem.out_stride + output] = FromFloat<Out>(sum);
  });
}

template <typename Shape, bool kTokensAreRows, typename T, typename Out>
cudaError_t LaunchTiles(const ExpertGemmArgs& args, int64_t max_rows, cudaStream_t stream) {
  constexpr int kTokens = kTokensAreRows ? Shape::kRows : Shape::kColumns;
  constexpr int kOutputs = kTokensAreRows ? Shape::kColumns : Shape::kRows;
  const PackedMatrix* weights = args.weights;
  const int64_t n = weights->n(), k = args.segment_k(), first_k = args.first_segment * k;
  Problem<T> problem{.weights = {},
                     .weight_stride = RowStride(weights->k()),
                     .n = n,
                     .k = k,
                     .a = static_cast<const T*>(args.a.data) + first_k,
                     .a_stride = args.a_stride,
                     .row_order = args.row_order,
                     .top_k = args.top_k,
                     .aligned = gemm::IsAligned(args.a, args.a_stride),
                     .out = args.out.data,
                     .out_stride = args.out_stride,
                     .segment_stride = args.segment_stride};
  for (int64_t first = 0; first < args.num_experts; first += kExperts) {
    const int64_t count = std::min<int64_t>(kExperts, args.num_experts - first);
    problem.bias = args.bias == nullptr ? nullptr : args.bias + first * n;
    problem.offsets = args.expert_offsets + first;
    problem.num_experts = static_cast<int>(count);
    for (int64_t e = 0; e < count; ++e) {
      const ConstFloats matrix = FloatsOf(weights[first + e]);
      problem.weights[e] = static_cast<const T*>(matrix.data) + first_k;
      problem.aligned &= gemm::IsAligned(matrix, problem.weight_stride);
    }
    // Each expert with rows has at most one tile that is not full.
    const dim3 grid(static_cast<unsigned>(max_rows / kTokens + std::min(max_rows, count)),
                    BlocksFor(n, kOutputs), static_cast<unsigned>(args.num_segments));
    const cudaError_t launched =
        Launch(ExpertGemmKernel<Shape, kTokensAreRows, T, Out>, grid, Shape::kThreads,
               sizeof(Shared<Shape, T, kTokens>), stream, problem);
    if (launched != cudaSuccess) return launched;
  }
  return cudaSuccess;
}

// By the rows that an expert has if all have as many: bits do not depend on it.
template <typename T, typename Out>
cudaError_t ChooseTile(const ExpertGemmArgs& args, int64_t max_rows, cudaStream_t stream) {
  const int64_t rows_each = max_rows / args.num_experts;
  if (rows_each <= gemm::FewTokens::kColumns) {
    return LaunchTiles<gemm::FewTokens, false, T, Out>(args, max_rows, stream);
  }
  if (rows_each <= gemm::SomeTokens::kColumns) {
    return LaunchTiles<gemm::SomeTokens, false, T, Out>(args, max_rows, stream);
  }
  return LaunchTiles<gemm::ManyTokens, true, T, Out>(args, max_rows, stream);
}

template <typename T>
cudaError_t ChooseOut(const ExpertGemmArgs& args, int64_t max_rows, cudaStream_t stream) {
  if (args.out.dtype == DType::kF32) return ChooseTile<T, float>(args, max_rows, stream);
  if (args.out.dtype == T::kDType) return ChooseTile<T, T>(args, max_rows, stream);
  return cudaErrorInvalidValue;
}

}  // namespace expert_gemm

cudaError_t ExpertGemm(const ExpertGemmArgs& args, cudaStream_t stream) {
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const PackedMatrix& weights = args.weights[e];
    if (weights.format() != WeightFormat::kCuda || args.a.dtype != weights.dtype()) {
      return cudaErrorInvalidValue;
    }
  }
  const int64_t max_rows = args.num_a_rows * (args.row_order == nullptr ? 1 : args.top_k);
  if (args.num_experts == 0 || max_rows == 0 || args.weights->n() == 0) return cudaSuccess;
  if (args.a.dtype == DType::kBF16) return expert_gemm::ChooseOut<Bf16>(args, max_rows, stream);
  if (args.a.dtype == DType::kF16) return expert_gemm::ChooseOut<F16>(args, max_rows, stream);
  return cudaErrorInvalidValue;
}

}  // namespace baton::cuda
