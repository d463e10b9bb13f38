#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm_sm90.h"
#include "kernels/cuda/gemm_tiles.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/small_gemm_sm90.h"
#include "kernels/cuda/sm90_forms.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace gemm {

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
  const int64_t first_row = int64_t{blockIdx.x} * Shape::kRows;
  const int64_t first_column = int64_t{blockIdx.y} * Shape::kColumns;
  Sums<Shape> sums = {};
  Multiply<Shape>(shared, SegmentOf(problem.rows, problem.k).From(first_row),
                  SegmentOf(problem.columns, problem.k).From(first_column), problem.k,
                  problem.aligned, sums);
  StoreSums<Shape>(sums, [&](int row, int column, float sum) {
    StoreSum<T, Out>(problem, first_row + row, first_column + column, sum);
  });
}

}  // namespace gemm

namespace {

using gemm::FewTokens;
using gemm::ManyTokens;
using gemm::SomeTokens;

template <typename Shape, typename T, typename Out>
cudaError_t LaunchGemm(const GemmArgs& args, bool tokens_are_rows, cudaStream_t stream) {
  const gemm::Operand<T> tokens{static_cast<const T*>(args.a.data), args.a_stride, args.m};
  const PackedMatrix& packed = *args.weights;
  const int64_t stride = RowStride(packed.k());
  const ConstFloats first = FloatsOf(packed).At(args.first_row * stride);
  const gemm::Operand<T> weights{static_cast<const T*>(first.data), stride, args.n()};
  const gemm::Problem<T> problem{
      .rows = tokens_are_rows ? tokens : weights,
      .columns = tokens_are_rows ? weights : tokens,
      .k = packed.k() / args.segments,
      .aligned = gemm::IsAligned(args.a, args.a_stride) &&
                 gemm::IsAligned(first, stride),
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

// The sums of the segments one beside the other in `scratch`, then finish(fold, row), which adds
// them up to rows [row, row + fold.num_tokens); so many rows at a time as have room there.
template <typename T, typename Finish>
cudaError_t MultiplySegments(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream,
                             const Finish& finish) {
  const int64_t n = args.n();
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
                          .bias = args.bias};
    for (int32_t s = 0; s < args.segments; ++s) fold.parts[s] = scratch.data() + s * sums.m * n;
    const cudaError_t finished = finish(fold, row);
    if (finished != cudaSuccess) return finished;
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t ChooseOut(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream) {
  if (args.segments > 1) {
    return MultiplySegments<T>(args, scratch, stream, [&](FoldPartialsArgs fold, int64_t row) {
      fold.out = args.out.At(row * args.out_stride);
      fold.out_stride = args.out_stride;
      return FoldPartials(fold, stream);
    });
  }
  if (args.out.dtype == DType::kF32) return ChooseTile<T, float>(args, stream);
  return ChooseTile<T, T>(args, stream);
}

}  // namespace

cudaError_t MmaGemm(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream) {
  if (args.a.dtype == DType::kBF16) return ChooseOut<Bf16>(args, scratch, stream);
  return ChooseOut<F16>(args, scratch, stream);
}

GemmForm FormOf(const GemmArgs& args) {
  if (!GemmSm90Takes(args) || !TakesSm90Forms()) return GemmForm::kMma;
  return SmallGemmSm90Pays(args) ? GemmForm::kFewRowsSm90 : GemmForm::kManyRowsSm90;
}

cudaError_t Gemm(const GemmArgs& args, std::span<float> scratch, cudaStream_t stream) {
  const PackedMatrix& weights = *args.weights;
  const DType type = args.a.dtype;
  if (weights.format() != WeightFormat::kCuda || type != weights.dtype() ||
      (type != DType::kBF16 && type != DType::kF16) ||
      (args.out.dtype != DType::kF32 && args.out.dtype != type)) {
    return cudaErrorInvalidValue;
  }
  if (args.m == 0 || weights.n() == 0) return cudaSuccess;
  switch (FormOf(args)) {
    case GemmForm::kFewRowsSm90:
      return SmallGemmSm90(args, stream);
    case GemmForm::kManyRowsSm90:
      return GemmSm90(args, stream);
    case GemmForm::kMma:
      break;
  }
  return MmaGemm(args, scratch, stream);
}

bool GemmAndNormServes(const GemmAndNormArgs& args) {
  return args.product.segments > 1 && args.product.out.dtype == DType::kF32;
}

cudaError_t GemmAndNorm(const GemmAndNormArgs& args, std::span<float> scratch,
                        cudaStream_t stream) {
  const GemmArgs& product = args.product;
  const PackedMatrix& weights = *product.weights;
  if (!GemmAndNormServes(args) || weights.format() != WeightFormat::kCuda ||
      product.a.dtype != weights.dtype()) {
    return cudaErrorInvalidValue;
  }
  if (product.m == 0) return cudaSuccess;
  const RmsNormArgs whole = args.Norm();
  const auto finish = [&](const FoldPartialsArgs& fold, int64_t row) {
    RmsNormArgs norm = whole;
    norm.num_tokens = fold.num_tokens;
    norm.residual += row * norm.residual_stride;
    norm.out = norm.out.At(row * norm.out_stride);
    return FoldAndNorm(fold, norm, stream);
  };
  if (product.a.dtype == DType::kBF16) {
    return MultiplySegments<Bf16>(product, scratch, stream, finish);
  }
  if (product.a.dtype == DType::kF16) {
    return MultiplySegments<F16>(product, scratch, stream, finish);
  }
  return cudaErrorInvalidValue;
}

}  // namespace baton::cuda
