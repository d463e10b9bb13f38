#include <algorithm>
#include <cstdint>

#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/gemm_sm90.h"
#include "kernels/cuda/gemm_tiles_sm90.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/ring.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace gemm_sm90 {

using gemm::kTileK;

// A block computes tiles of kRows tokens times 128 or 256 weights, one after the other: one
// warpgroup copies tiles of k, each of the others multiplies 64 of the rows. A tile of 256 weights
// reads a quarter less for each product; with segments there is no room for its sums.
constexpr int kRows = kTile;
constexpr int kWideTile = 2 * kTile;
constexpr int kConsumers = kRows / 64;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kGroupRows = 16;  // Tiles of rows whose blocks share the same columns.

// Sums of four segments, which wait for as many more. Those of one and of two wait in registers.
template <bool kFolds>
struct Subtrees {};
template <>
struct Subtrees<true> {
  float four[kTile / 2][kConsumers * kWarpgroup];
};

template <typename T, int kColumns_, bool kFolds>
struct Shared {
  static constexpr int kColumns = kColumns_;
  static constexpr int kSums = kColumns / 2;  // Of each thread.
  // As many as there is room for.
  static constexpr int kStages = kColumns == kWideTile ? 4 : kFolds ? 5 : 7;

  alignas(1024) T rows[kStages][kRows][kTileK];
  alignas(1024) T columns[kStages][kColumns][kTileK];
  Subtrees<kFolds> subtrees;
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
};
static_assert(sizeof(Shared<Bf16, kTile, true>) <= kMostShared);
static_assert(sizeof(Shared<Bf16, kTile, false>) <= kMostShared);
static_assert(sizeof(Shared<Bf16, kWideTile, false>) <= kMostShared);

struct Problem {
  int64_t m;
  int64_t n;
  int row_tiles;
  int column_tiles;
  int k_tiles;  // In a segment.
  int segments;
  const float* bias;
  void* out;
  int64_t out_stride;
  bool pairs;  // Two neighbours of `out` can be stored at once.
};

// Who waits for whom, in every block and for all of its tiles as if they were one:
//   copies of a stage -> full -> its products: a phase ends once all bytes of a tile of k are
//   there. products of a stage -> empty -> the next copy to it: a lane of each consuming warp
//   arrives once
//     wgmma has read the stage, which it knows when the products behind those are issued, or all of
//     a segment have ended.
// So while consumers store a tile the copies of the next one fill all stages. What they fold and
// store is each thread's own.
template <typename Do>
BATON_DEVICE void ForEachTile(const Problem& problem, const Do& each) {
  const int tiles = problem.row_tiles * problem.column_tiles;
  BATON_ROLLED
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // Blocks that run at the same time have some rows and some columns, which L2 keeps.
    const int first_row = tile / (kGroupRows * problem.column_tiles) * kGroupRows;
    const int rows = min(kGroupRows, problem.row_tiles - first_row);
    const int place = tile - first_row * problem.column_tiles;
    each(first_row + place % rows, place / rows);
  }
}

template <typename Stages>
BATON_DEVICE void Produce(Stages& shared, const TensorMap& rows, const TensorMap& columns,
                          const Problem& problem) {
  Ring<Stages::kStages> ring;
  ForEachTile(problem, [&](int row_tile, int column_tile) {
    for (int segment = 0; segment < problem.segments; ++segment) {
      BATON_ROLLED
      for (int tile = 0; tile < problem.k_tiles; ++tile, ring.Advance()) {
        Wait(shared.empty[ring.stage], ring.parity ^ 1);  // At first nothing is in it.
        Mbarrier& full = shared.full[ring.stage];
        ArriveExpecting(full, sizeof(shared.rows[0]) + sizeof(shared.columns[0]));
        CopyBox(shared.rows[ring.stage], rows, full, tile * kTileK, segment, row_tile * kRows);
        CopyBox(shared.columns[ring.stage], columns, full, tile * kTileK, segment,
                column_tile * Stages::kColumns);
      }
    }
  });
}

// The sums of one segment, from zero.
template <typename Stages, typename Ring>
BATON_DEVICE void MultiplySegment(Stages& shared, int consumer, int tiles, Ring& ring,
                                  float (&sums)[Stages::kSums]) {
  const bool arrives = threadIdx.x % 32 == 0;
  BATON_UNROLL
  for (int i = 0; i < Stages::kSums; ++i) sums[i] = 0;
  int before = 0;  // The stage whose products may be in flight.
  BATON_ROLLED
  for (int tile = 0; tile < tiles; ++tile, ring.Advance()) {
    const int stage = Uniform(ring.stage);
    Wait(shared.full[stage], ring.parity);
    FenceSums(sums);
    BATON_UNROLL
    for (int k = 0; k < kTileK; k += 16) {
      MultiplyAsync(sums, &shared.rows[stage][64 * consumer][k], &shared.columns[stage][0][k]);
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
template <int kSums>
BATON_DEVICE void Fold(Subtrees<true>& shared, int segment, float (&one)[kSums],
                       float (&two)[kSums], float (&sums)[kSums]) {
  const int place = static_cast<int>(threadIdx.x) - kWarpgroup;
  BATON_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if (segment % 2 == 0) one[i] = sums[i];
    if (segment % 2 == 1) sums[i] += one[i];
    if (segment % 4 == 1) two[i] = sums[i];
    if (segment % 4 == 3) sums[i] += two[i];
    if (segment == 3) shared.four[i][place] = sums[i];
    if (segment == 7) sums[i] += shared.four[i][place];
  }
}

template <typename Out>
BATON_DEVICE void StorePair(Out* to, float first, float second) {
  if constexpr (sizeof(Out) == sizeof(float)) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
  } else {
    *reinterpret_cast<uint32_t*>(to) =
        FromFloat<Out>(first).bits | uint32_t{FromFloat<Out>(second).bits} << 16;
  }
}

// Of a tile that begins there.
template <typename Out, int kSums>
BATON_DEVICE void Store(const Problem& problem, int64_t tile_row, int64_t tile_column,
                        const float (&sums)[kSums]) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  const int64_t first_row = tile_row + thread / 32 * 16 + lane / 4;
  const int64_t first_column = tile_column + lane % 4 * 2;
  BATON_UNROLL
  for (int i = 0; i < kSums; i += 2) {
    const int64_t row = first_row + i / 2 % 2 * 8, column = first_column + i / 4 * 8;
    if (row >= problem.m || column >= problem.n) continue;
    const bool is_pair = column + 1 < problem.n;
    float first = sums[i], second = sums[i + 1];
    if (problem.bias != nullptr) {
      first += problem.bias[column];
      if (is_pair) second += problem.bias[column + 1];
    }
    Out* const to = static_cast<Out*>(problem.out) + row * problem.out_stride + column;
    if (is_pair && problem.pairs) {
      StorePair(to, first, second);
      continue;
    }
    to[0] = FromFloat<Out>(first);
    if (is_pair) to[1] = FromFloat<Out>(second);
  }
}

template <typename Out, bool kFolds, typename Stages>
BATON_DEVICE void Consume(Stages& shared, const Problem& problem) {
  const int consumer = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  Ring<Stages::kStages> ring;
  ForEachTile(problem, [&](int row_tile, int column_tile) {
    float sums[Stages::kSums];
    if constexpr (kFolds) {
      float one[Stages::kSums] = {}, two[Stages::kSums] = {};
      BATON_ROLLED
      for (int segment = 0; segment < problem.segments; ++segment) {
        MultiplySegment(shared, consumer, problem.k_tiles, ring, sums);
        Fold(shared.subtrees, segment, one, two, sums);
      }
    } else {
      MultiplySegment(shared, consumer, problem.k_tiles, ring, sums);
    }
    Store<Out>(problem, int64_t{row_tile} * kRows + 64 * consumer,
               int64_t{column_tile} * Stages::kColumns, sums);
  });
}

template <typename T, typename Out, int kColumns, bool kFolds>
__global__ void __launch_bounds__(kThreads, 1)
    GemmSm90Kernel(const __grid_constant__ TensorMap rows,
                   const __grid_constant__ TensorMap columns, Problem problem) {
  auto& shared = SharedMemory<Shared<T, kColumns, kFolds>>();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < shared.kStages; ++stage) {
      InitMbarrier(shared.full[stage], 1);
      InitMbarrier(shared.empty[stage], 4 * kConsumers);  // A lane of each warp.
    }
    FenceProxy();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) Produce(shared, rows, columns, problem);
  } else {
    TakeRegisters<240>();
    Consume<Out, kFolds>(shared, problem);
  }
}

}  // namespace gemm_sm90

namespace {

using gemm_sm90::kTile;
using gemm_sm90::kWideTile;
using gemm_sm90::MapOf;
using gemm_sm90::Problem;

cudaError_t CountSms(int& sms) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
}

// Whether wide tiles pay, which take 7/4 of the time of others as long as all SMs have one.
bool IsWide(const GemmArgs& args, int sms) {
  if (args.segments > 1) return false;
  const auto rounds = [&](int columns) {
    const int64_t tiles = int64_t{BlocksFor(args.m, kTile)} * BlocksFor(args.n(), columns);
    return (tiles + sms - 1) / sms;
  };
  return 7 * rounds(kWideTile) <= 4 * rounds(kTile);
}

Problem ProblemOf(const GemmArgs& args, int columns) {
  const size_t pair = 2 * static_cast<size_t>(SizeOf(args.out.dtype));
  return {
      .m = args.m,
      .n = args.n(),
      .row_tiles = static_cast<int>(BlocksFor(args.m, kTile)),
      .column_tiles = static_cast<int>(BlocksFor(args.n(), columns)),
      .k_tiles = static_cast<int>(BlocksFor(args.weights->k() / args.segments, gemm::kTileK)),
      .segments = args.segments,
      .bias = args.bias,
      .out = args.out.data,
      .out_stride = args.out_stride,
      .pairs = args.out_stride % 2 == 0 && reinterpret_cast<uintptr_t>(args.out.data) % pair == 0};
}

template <typename T, typename Out, int kColumns, bool kFolds>
cudaError_t LaunchSm90(const GemmArgs& args, int sms, cudaStream_t stream) {
  const int64_t k = args.weights->k();
  const ConstFloats first = FloatsOf(*args.weights).At(args.first_row * RowStride(k));
  TensorMap rows, columns;
  const cudaError_t rows_error =
      MapOf(rows, args.a.data, args.m, args.a_stride, k, args.segments, kTile);
  if (rows_error != cudaSuccess) return rows_error;
  const cudaError_t columns_error =
      MapOf(columns, first.data, args.n(), RowStride(k), k, args.segments, kColumns);
  if (columns_error != cudaSuccess) return columns_error;
  const Problem problem = ProblemOf(args, kColumns);
  const dim3 grid(std::min(sms, problem.row_tiles * problem.column_tiles));
  return Launch(gemm_sm90::GemmSm90Kernel<T, Out, kColumns, kFolds>, grid, gemm_sm90::kThreads,
                sizeof(gemm_sm90::Shared<T, kColumns, kFolds>), stream, rows, columns, problem);
}

template <typename T, typename Out>
cudaError_t ChooseTile(const GemmArgs& args, bool wide, int sms, cudaStream_t stream) {
  if (args.segments > 1) return LaunchSm90<T, Out, kTile, true>(args, sms, stream);
  return wide ? LaunchSm90<T, Out, kWideTile, false>(args, sms, stream)
              : LaunchSm90<T, Out, kTile, false>(args, sms, stream);
}

cudaError_t ChooseTypes(const GemmArgs& args, bool wide, int sms, cudaStream_t stream) {
  const bool is_f32 = args.out.dtype == DType::kF32;
  if (args.a.dtype == DType::kBF16) {
    return is_f32 ? ChooseTile<Bf16, float>(args, wide, sms, stream)
                  : ChooseTile<Bf16, Bf16>(args, wide, sms, stream);
  }
  return is_f32 ? ChooseTile<F16, float>(args, wide, sms, stream)
                : ChooseTile<F16, F16>(args, wide, sms, stream);
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
  int sms = 0;
  if (const cudaError_t error = CountSms(sms); error != cudaSuccess) return error;
  return ChooseTypes(args, IsWide(args, sms), sms, stream);
}

cudaError_t WideGemmSm90(const GemmArgs& args, cudaStream_t stream) {
  int sms = 0;
  if (const cudaError_t error = CountSms(sms); error != cudaSuccess) return error;
  return ChooseTypes(args, true, sms, stream);
}

}  // namespace baton::cuda
