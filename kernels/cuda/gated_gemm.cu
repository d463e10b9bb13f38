#include "kernels/cuda/gated_gemm.h"

#include "kernels/cuda/gated.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_tiles.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/small_gemm_sm90.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace gated_gemm {

using gemm::Operand;

constexpr int kGroup = 8;  // Neighbours of gate, or of up, in a tile.

// Rows of gate and up in turns, 8 of each: so a thread of a tile has the sums of a gate and of its
// up. `count`: of both, and no group is cut.
template <typename T>
struct GatesAndUps {
  const T* data;
  int64_t stride;
  int64_t count;
  int64_t to_up;  // Elements from a gate to its up.

  BATON_DEVICE int64_t PlaceOf(int row) const {
    const int output = row / (2 * kGroup) * kGroup + row % kGroup;
    return output * stride + (row / kGroup % 2 == 0 ? 0 : to_up);
  }
};

template <typename T>
struct Problem {
  Operand<T> tokens;
  const T* weights;
  int64_t weight_stride;
  int64_t n;  // Gates.
  int64_t k;
  bool aligned;       // Rows of both begin at multiples of 16 bytes.
  const float* bias;  // Of gates, then of ups; or null.
  ActivationKind activation;
  T* out;
  int64_t out_stride;
};

template <typename T>
BATON_DEVICE void StoreGated(const Problem<T>& problem, int64_t token, int64_t output, float gate,
                             float up) {
  if (token >= problem.tokens.count || output >= problem.n) return;
  if (problem.bias != nullptr) {
    gate += problem.bias[output];
    up += problem.bias[problem.n + output];
  }
  problem.out[token * problem.out_stride + output] = Gated<T>(problem.activation, gate, up);
}

// Few tokens: weights are rows. The two halves of an mma's 16 rows are gates and ups.
template <typename Shape, typename T>
__global__ void __launch_bounds__(Shape::kThreads, 1) WeightRowsKernel(Problem<T> problem) {
  auto& shared = SharedMemory<gemm::Stages<Shape, T>>();
  const int64_t first_output = int64_t{blockIdx.x} * (Shape::kRows / 2);
  const int64_t first_token = int64_t{blockIdx.y} * Shape::kColumns;
  const GatesAndUps<T> weights{problem.weights + first_output * problem.weight_stride,
                               problem.weight_stride, 2 * (problem.n - first_output),
                               problem.n * problem.weight_stride};
  gemm::Sums<Shape> sums = {};
  gemm::Multiply<Shape>(shared, weights, problem.tokens.From(first_token), problem.k,
                        problem.aligned, sums);
  const int lane = threadIdx.x % 32;
  BATON_UNROLL
  for (int i = 0; i < Shape::kWarpRows / 16; ++i) {
    BATON_UNROLL
    for (int j = 0; j < Shape::kWarpColumns / 8; ++j) {
      const int output = gemm::WarpRow<Shape>() / 2 + kGroup * i + lane / 4;
      const int token = gemm::WarpColumn<Shape>() + 8 * j + lane % 4 * 2;
      BATON_UNROLL
      for (int c = 0; c < 2; ++c) {
        StoreGated(problem, first_token + token + c, first_output + output, sums[i][j][c],
                   sums[i][j][2 + c]);
      }
    }
  }
}

// Many tokens: weights are columns. Of two neighbouring mmas the first has gates.
template <typename Shape, typename T>
__global__ void __launch_bounds__(Shape::kThreads, 1) WeightColumnsKernel(Problem<T> problem) {
  auto& shared = SharedMemory<gemm::Stages<Shape, T>>();
  const int64_t first_token = int64_t{blockIdx.x} * Shape::kRows;
  const int64_t first_output = int64_t{blockIdx.y} * (Shape::kColumns / 2);
  const GatesAndUps<T> weights{problem.weights + first_output * problem.weight_stride,
                               problem.weight_stride, 2 * (problem.n - first_output),
                               problem.n * problem.weight_stride};
  gemm::Sums<Shape> sums = {};
  gemm::Multiply<Shape>(shared, problem.tokens.From(first_token), weights, problem.k,
                        problem.aligned, sums);
  const int lane = threadIdx.x % 32;
  BATON_UNROLL
  for (int i = 0; i < Shape::kWarpRows / 16; ++i) {
    BATON_UNROLL
    for (int j = 0; j < Shape::kWarpColumns / 8; j += 2) {
      const int token = gemm::WarpRow<Shape>() + 16 * i + lane / 4;
      const int output = (gemm::WarpColumn<Shape>() + 8 * j) / 2 + lane % 4 * 2;
      BATON_UNROLL
      for (int c = 0; c < 4; ++c) {
        StoreGated(problem, first_token + token + c / 2 * 8, first_output + output + c % 2,
                   sums[i][j][c], sums[i][j + 1][c]);
      }
    }
  }
}

}  // namespace gated_gemm

namespace {

template <typename Shape, typename T>
cudaError_t LaunchGated(const gated_gemm::Problem<T>& problem, cudaStream_t stream) {
  const int64_t rows = problem.tokens.count;
  if constexpr (std::is_same_v<Shape, gemm::ManyTokens>) {
    return Launch(gated_gemm::WeightColumnsKernel<Shape, T>,
                  dim3(BlocksFor(rows, Shape::kRows), BlocksFor(problem.n, Shape::kColumns / 2)),
                  Shape::kThreads, sizeof(gemm::Stages<Shape, T>), stream, problem);
  } else {
    return Launch(gated_gemm::WeightRowsKernel<Shape, T>,
                  dim3(BlocksFor(problem.n, Shape::kRows / 2), BlocksFor(rows, Shape::kColumns)),
                  Shape::kThreads, sizeof(gemm::Stages<Shape, T>), stream, problem);
  }
}

template <typename T>
cudaError_t ChooseGatedTile(const GatedGemmArgs& args, cudaStream_t stream) {
  const GemmArgs& product = args.product;
  const PackedMatrix& packed = *product.weights;
  const int64_t stride = RowStride(packed.k()), n = product.n() / 2;
  const ConstFloats first = FloatsOf(packed).At(product.first_row * stride);
  const gated_gemm::Problem<T> problem{
      .tokens = {static_cast<const T*>(product.a.data), product.a_stride, product.m},
      .weights = static_cast<const T*>(first.data),
      .weight_stride = stride,
      .n = n,
      .k = packed.k(),
      .aligned = gemm::IsAligned(product.a, product.a_stride) && gemm::IsAligned(first, stride),
      .bias = product.bias,
      .activation = args.activation,
      .out = static_cast<T*>(args.out.data),
      .out_stride = args.out_stride == 0 ? n : args.out_stride};
  if (product.m <= gemm::FewTokens::kColumns) return LaunchGated<gemm::FewTokens>(problem, stream);
  if (product.m <= gemm::SomeTokens::kColumns) {
    return LaunchGated<gemm::SomeTokens>(problem, stream);
  }
  return LaunchGated<gemm::ManyTokens>(problem, stream);
}

}  // namespace

bool GatedGemmServes(const GatedGemmArgs& args) {
  const DType dtype = args.product.a.dtype;
  return dtype != DType::kF32 && args.product.weights->dtype() == dtype &&
         args.product.out.dtype == dtype && args.out.dtype == dtype && args.round_to == dtype &&
         args.product.segments == 1 && args.product.n() % (2 * gated_gemm::kGroup) == 0;
}

cudaError_t MmaGatedGemm(const GatedGemmArgs& args, cudaStream_t stream) {
  if (args.product.a.dtype == DType::kBF16) return ChooseGatedTile<Bf16>(args, stream);
  return ChooseGatedTile<F16>(args, stream);
}

cudaError_t GatedGemm(const GatedGemmArgs& args, cudaStream_t stream) {
  if (args.product.weights->format() != WeightFormat::kCuda || !GatedGemmServes(args)) {
    return cudaErrorInvalidValue;
  }
  if (args.product.m == 0) return cudaSuccess;
  return FormOf(args.product) == GemmForm::kFewRowsSm90 ? SmallGatedGemmSm90(args, stream)
                                                       : MmaGatedGemm(args, stream);
}

}  // namespace baton::cuda
