#include "kernels/cuda/gemm_sm90.h"

#include <cstdint>

#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/gemm_tiles_sm90.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/ring.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace gemm_sm90 {

using gemm::kTileK;

// A block computes kRows tokens times kColumns weights: one warpgroup copies tiles of k, each of
// the others multiplies 64 of the rows.
constexpr int kRows = kTile;
constexpr int kColumns = kTile;
constexpr int kConsumers = kRows / 64;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kSums = kColumns / 2;  // Of each thread.

// Sums of two and of four segments, which wait for as many more. Those of one wait in registers.
template <bool kFolds>
struct Subtrees {};
template <>
struct Subtrees<true> {
  float two[kSums][kConsumers * kWarpgroup];
  float four[kSums][kConsumers * kWarpgroup];
};

template <typename T, bool kFolds>
struct Shared {
  static constexpr int kStages = kFolds ? 3 : 4;  // As many as there is room for.

  alignas(1024) T rows[kStages][kRows][kTileK];
  alignas(1024) T columns[kStages][kColumns][kTileK];
  Subtrees<kFolds> subtrees;
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
};

static_assert(sizeof(Shared<Bf16, true>) <= kMostShared);
static_assert(sizeof(Shared<Bf16, false>) <= kMostShared);

struct Problem {
  int64_t m;
  int64_t n;
  int tiles;  // Of k, in a segment.
  int segments;
  const float* bias;
  void* out;
  int64_t out_stride;
};

template <typename Stages>
BATON_DEVICE void Produce(Stages& shared, const TensorMap& rows, const TensorMap& columns,
                          const Problem& problem) {
  Ring<Stages::kStages> ring;
  for (int segment = 0; segment < problem.segments; ++segment) {
    BATON_ROLLED
    for (int tile = 0; tile < problem.tiles; ++tile, ring.Advance()) {
      Wait(shared.empty[ring.stage], ring.parity ^ 1);  // At first nothing is in it.
      Mbarrier& full = shared.full[ring.stage];
      ArriveExpecting(full, sizeof(shared.rows[0]) + sizeof(shared.columns[0]));
      CopyBox(shared.rows[ring.stage], rows, full, tile * kTileK, segment, blockIdx.x * kRows);
      CopyBox(shared.columns[ring.stage], columns, full, tile * kTileK, segment,
              blockIdx.y * kColumns);
    }
  }
}

// The sums of one segment, from zero.
template <typename Stages, typename Ring>
BATON_DEVICE void MultiplySegment(Stages& shared, int consumer, int tiles, Ring& ring,
                                  float (&sums)[kSums]) {
  const bool arrives = threadIdx.x % 32 == 0;
  BATON_UNROLL
  for (int i = 0; i < kSums; ++i) sums[i] = 0;
  int before = 0;  // The stage whose products may be in flight.
  BATON_ROLLED
  for (int tile = 0; tile < tiles; ++tile, ring.Advance()) {
    Wait(shared.full[ring.stage], ring.parity);
    FenceSums(sums);
    BATON_UNROLL
    for (int k = 0; k < kTileK; k += 16) {
      MultiplyAsync(sums, &shared.rows[ring.stage][64 * consumer][k],
                    &shared.columns[ring.stage][0][k]);
    }
    CommitProducts();
    WaitProducts<1>();
    if (tile > 0 && arrives) Arrive(shared.empty[before]);
    before = ring.stage;
  }
  FinishSums(sums);
  if (arrives) Arrive(shared.empty[before]);
}

// The tree of GemmArgs, segment after segment: a sum waits for that of as many segments that comes
// behind it.
BATON_DEVICE void Fold(Subtrees<true>& shared, int segment, float (&one)[kSums],
                       float (&sums)[kSums]) {
  const int place = static_cast<int>(threadIdx.x) - kWarpgroup;
  const auto wait_or_add = [&](float(&waiting)[kSums][kConsumers * kWarpgroup], bool waits) {
    BATON_UNROLL
    for (int i = 0; i < kSums; ++i) {
      if (waits) waiting[i][place] = sums[i];
      if (!waits) sums[i] += waiting[i][place];
    }
  };
  BATON_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if (segment % 2 == 0) one[i] = sums[i];
    if (segment % 2 == 1) sums[i] += one[i];
  }
  if (segment % 2 == 1) wait_or_add(shared.two, segment % 4 == 1);
  if (segment % 4 == 3) wait_or_add(shared.four, segment == 3);
}

template <typename Out>
BATON_DEVICE void Store(const Problem& problem, int consumer, const float (&sums)[kSums]) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int64_t first_row =
      int64_t{blockIdx.x} * kRows + 64 * consumer + thread / 32 * 16 + lane / 4;
  const int64_t first_column = int64_t{blockIdx.y} * kColumns + lane % 4 * 2;
  BATON_UNROLL
  for (int i = 0; i < kSums; ++i) {
    const int64_t row = first_row + i / 2 % 2 * 8, column = first_column + i / 4 * 8 + i % 2;
    if (row >= problem.m || column >= problem.n) continue;
    float sum = sums[i];
    if (problem.bias != nullptr) sum += problem.bias[column];
    static_cast<Out*>(problem.out)[row * problem.out_stride + column] = FromFloat<Out>(sum);
  }
}

template <typename Out, bool kFolds, typename Stages>
BATON_DEVICE void Consume(Stages& shared, const Problem& problem) {
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  Ring<Stages::kStages> ring;
  float sums[kSums];
  if constexpr (kFolds) {
    float one[kSums];
    BATON_ROLLED
    for (int segment = 0; segment < problem.segments; ++segment) {
      MultiplySegment(shared, consumer, problem.tiles, ring, sums);
      Fold(shared.subtrees, segment, one, sums);
    }
  } else {
    MultiplySegment(shared, consumer, problem.tiles, ring, sums);
  }
  Store<Out>(problem, consumer, sums);
}

template <typename T, typename Out, bool kFolds>
__global__ void __launch_bounds__(kThreads, 1)
    GemmSm90Kernel(const __grid_constant__ TensorMap rows,
                   const __grid_constant__ TensorMap columns, Problem problem) {
  auto& shared = SharedMemory<Shared<T, kFolds>>();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < shared.kStages; ++stage) {
      InitMbarrier(shared.full[stage], 1);
      InitMbarrier(shared.empty[stage], 4 * kConsumers);  // A lane of each warp.
    }
    FenceProxy();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<40>();
    if (threadIdx.x == 0) Produce(shared, rows, columns, problem);
  } else {
    TakeRegisters<232>();
    Consume<Out, kFolds>(shared, problem);
  }
}

}  // namespace gemm_sm90

namespace {

using gemm_sm90::MapOf;
using gemm_sm90::Problem;

template <typename T, typename Out, bool kFolds>
cudaError_t LaunchSm90(const GemmArgs& args, cudaStream_t stream) {
  const PackedMatrix& weights = *args.weights;
  const int64_t k = weights.k(), n = args.n();
  const ConstFloats first = FloatsOf(weights).At(args.first_row * RowStride(k));
  TensorMap rows, columns;
  const cudaError_t rows_error = MapOf(rows, args.a.data, args.m, args.a_stride, k, args.segments,
                                       gemm_sm90::kRows);
  if (rows_error != cudaSuccess) return rows_error;
  const cudaError_t columns_error = MapOf(columns, first.data, n, RowStride(k), k, args.segments,
                                          gemm_sm90::kColumns);
  if (columns_error != cudaSuccess) return columns_error;
  const Problem problem{.m = args.m,
                        .n = n,
                        .tiles = static_cast<int>(BlocksFor(k / args.segments, gemm::kTileK)),
                        .segments = args.segments,
                        .bias = args.bias,
                        .out = args.out.data,
                        .out_stride = args.out_stride};
  const dim3 grid(BlocksFor(args.m, gemm_sm90::kRows), BlocksFor(n, gemm_sm90::kColumns));
  return Launch(gemm_sm90::GemmSm90Kernel<T, Out, kFolds>, grid, gemm_sm90::kThreads,
                sizeof(gemm_sm90::Shared<T, kFolds>), stream, rows, columns, problem);
}

template <typename T, typename Out>
cudaError_t ChooseFold(const GemmArgs& args, cudaStream_t stream) {
  return args.segments > 1 ? LaunchSm90<T, Out, true>(args, stream)
                           : LaunchSm90<T, Out, false>(args, stream);
}

template <typename T>
cudaError_t ChooseOut(const GemmArgs& args, cudaStream_t stream) {
  return args.out.dtype == DType::kF32 ? ChooseFold<T, float>(args, stream)
                                       : ChooseFold<T, T>(args, stream);
}

}  // namespace

bool IsSm90() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

bool GemmSm90Takes(const GemmArgs& args) {
  const int64_t k = args.weights->k();
  return k > 0 && gemm::IsAligned(args.a, args.a_stride) &&
         gemm::IsAligned(FloatsOf(*args.weights), RowStride(k)) &&
         (args.segments == 1 || k / args.segments % gemm::kChunk == 0);
}

cudaError_t GemmSm90(const GemmArgs& args, cudaStream_t stream) {
  if (args.a.dtype == DType::kBF16) return ChooseOut<Bf16>(args, stream);
  return ChooseOut<F16>(args, stream);
}

}  // namespace baton::cuda
