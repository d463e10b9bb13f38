#include <cstdint>

#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/gated.h"
#include "kernels/cuda/gemm_tiles_sm90.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/small_gemm_sm90.h"
#include "kernels/cuda/weights.h"

namespace baton::cuda {
namespace small_gemm_sm90 {

using gemm::kTileK;

// A block multiplies up to kRows rows of the weights, wgmma's rows, with up to kTokens tokens, its
// columns, over one segment of k: a warpgroup for each 64 rows, and behind them a warp that copies.
// Blocks of a grid: segments along x, tiles of tokens along y, of weights along z, so that those
// which share weights run at the same time.
constexpr int kMostTokens = 128;

// Weights are read once, so what counts is how many bytes of them are asked for at a time: for 4.8
// TB/s and 1 us from request to arrival 4.8 MB, 36 KB on each SM. A stage has 8 KB of them, and two
// blocks fit an SM, with 80 to 176 KB in flight together. With the most tokens there is room for
// one block, which has 56 or 64 KB in flight.
constexpr int StagesFor(int rows, int tokens) {
  if (tokens == kMostTokens) return rows == 64 ? 8 : 5;
  if (tokens <= 8) return 12;
  return tokens <= 16 ? 10 : tokens <= 32 ? 8 : 6;
}
constexpr int BlocksOfSm(int tokens) { return tokens == kMostTokens ? 1 : 2; }

template <typename T, int kRows_, int kTokens_>
struct Shared {
  static constexpr int kRows = kRows_, kTokens = kTokens_;
  static constexpr int kThreads = kRows / 64 * gemm_sm90::kWarpgroup;  // That multiply.
  static constexpr int kBlockThreads = kThreads + 32;
  static constexpr int kStages = StagesFor(kRows, kTokens);
  static constexpr int kSums = kTokens / 2;  // Of each thread.

  alignas(1024) T weights[kStages][kRows][kTileK];
  alignas(1024) T tokens[kStages][kTokens][kTileK];
  // Sums of some threads of each block of the cluster: [segments][kSums / 4][threads]. Or of ups.
  float4 partials[kSums / 4 * kThreads];
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
};

constexpr size_t kHalfOfShared = 113 << 10;  // Of an SM, without what each block takes besides.
static_assert(sizeof(Shared<Bf16, 64, 8>) <= kHalfOfShared);
static_assert(sizeof(Shared<Bf16, 64, 16>) <= kHalfOfShared);
static_assert(sizeof(Shared<Bf16, 64, 32>) <= kHalfOfShared);
static_assert(sizeof(Shared<Bf16, 64, 64>) <= kHalfOfShared);
static_assert(sizeof(Shared<Bf16, 64, kMostTokens>) <= gemm_sm90::kMostShared);
static_assert(sizeof(Shared<Bf16, 128, kMostTokens>) <= gemm_sm90::kMostShared);

struct Problem {
  int64_t n;     // Outputs of a token.
  int m;         // Tokens.
  int rows;      // Of a block's tile: kRows, or half of 64 where there are few.
  int tiles;     // Of k, in a segment.
  int segments;  // Blocks of a cluster, along x.
  ActivationKind activation;
  const float* bias;  // Of gates, then of ups, where there are both.
  void* out;
  int64_t out_stride;
};

template <bool kGated, typename Stages>
BATON_DEVICE void CopyTile(Stages& shared, const TensorMap& weights, const TensorMap& tokens,
                           const Problem& problem, int tile, int stage) {
  Mbarrier& full = shared.full[stage];
  const int row_bytes = static_cast<int>(sizeof(shared.weights[0][0]));
  ArriveExpecting(full, problem.rows * row_bytes + static_cast<int>(sizeof(shared.tokens[0])));
  if constexpr (kGated) {
    CopyBox(shared.weights[stage], weights, full, tile * kTileK, blockIdx.z * problem.rows / 2, 0);
  } else {
    CopyBox(shared.weights[stage], weights, full, tile * kTileK, blockIdx.x,
            blockIdx.z * problem.rows);
  }
  CopyBox(shared.tokens[stage], tokens, full, tile * kTileK, blockIdx.x,
          blockIdx.y * Stages::kTokens);
}

// No copy writes the rows behind those of the block's tile; of `stages` wgmma reads them.
template <typename Stages>
BATON_DEVICE void ClearRows(Stages& shared, int first, int stages) {
  constexpr int kVectors = kTileK / gemm::kChunk;  // Of a row.
  const int thread = threadIdx.x;
  BATON_ROLLED
  for (int stage = 0; stage < stages; ++stage) {
    auto* rows = reinterpret_cast<uint4*>(shared.weights[stage][0]);
    BATON_ROLLED
    for (int i = first * kVectors + thread; i < Stages::kRows * kVectors; i += Stages::kThreads) {
      rows[i] = uint4{0, 0, 0, 0};
    }
  }
}

// Copies all tiles behind the first, which fill the stages: each to one that nobody reads any more.
template <bool kGated, typename Stages>
BATON_DEVICE void CopyOthers(Stages& shared, const TensorMap& weights, const TensorMap& tokens,
                             const Problem& problem) {
  Ring<Stages::kStages> ring;
  BATON_ROLLED
  for (int tile = Stages::kStages; tile < problem.tiles; ++tile, ring.Advance()) {
    Wait(shared.empty[ring.stage], ring.parity);
    CopyTile<kGated>(shared, weights, tokens, problem, tile, ring.stage);
  }
}

// The sums of the block's segment, from zero.
template <typename Stages>
BATON_DEVICE void Multiply(Stages& shared, int tiles, float (&sums)[Stages::kSums]) {
  BATON_UNROLL
  for (int i = 0; i < Stages::kSums; ++i) sums[i] = 0;
  const int first_row = 64 * Uniform(static_cast<int>(threadIdx.x) / gemm_sm90::kWarpgroup);
  Ring<Stages::kStages> ring;
  int tile = 0, before = 0;  // The stage whose products may be in flight.
  BATON_ROLLED
  do {  // There is a tile, of which the compiler has to know.
    const int stage = Uniform(ring.stage);
    Wait(shared.full[stage], ring.parity);
    FenceSums(sums);
    BATON_UNROLL
    for (int k = 0; k < kTileK; k += 16) {
      MultiplyAsync(sums, &shared.weights[stage][first_row][k], &shared.tokens[stage][0][k]);
    }
    CommitProducts();
    WaitProducts<1>();
    if (tile > 0 && threadIdx.x % 32 == 0) Arrive(shared.empty[before]);
    before = stage;
    ring.Advance();
  } while (++tile < tiles);
  FinishSums(sums);
}

// Where sum i of a thread lies: wgmma's rows are weights.
BATON_DEVICE int RowOf(int thread, int i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
template <typename Stages>
BATON_DEVICE int TokenOf(int thread, int i) {
  return blockIdx.y * Stages::kTokens + i / 4 * 8 + thread % 4 * 2 + i % 2;
}

template <typename Out>
BATON_DEVICE void StoreSum(const Problem& problem, int row, int token, float sum) {
  const int64_t column = int64_t{blockIdx.z} * problem.rows + row;
  if (row >= problem.rows || column >= problem.n || token >= problem.m) return;
  if (problem.bias != nullptr) sum += problem.bias[column];
  static_cast<Out*>(problem.out)[token * problem.out_stride + column] = FromFloat<Out>(sum);
}

// Adds up the segments' sums as the tree of GemmArgs. Each block of the cluster does so for some
// threads of all blocks, of which it has what stood in `sums`. Who waits for whom:
//   start -> first barrier -> stores: every block has started, so its memory is there.
//   stores -> second barrier -> additions: all sums of the block's own threads are there.
// Behind the second barrier a block touches its own memory alone, and may end before the others.
template <typename Out, typename Stages>
BATON_DEVICE void FoldAndStore(Stages& shared, const Problem& problem, bool is_copying,
                               const float (&sums)[Stages::kSums]) {
  constexpr int kSums = Stages::kSums, kMost = 8;
  const int segment = blockIdx.x, thread = threadIdx.x;
  const int threads = Stages::kThreads / problem.segments;  // Whose sums a block adds up.
  WaitCluster();
  BATON_UNROLL
  for (int i = 0; i < kSums; i += 4) {
    if (is_copying) break;
    const int place = (segment * kSums + i) / 4 * threads + thread % threads;
    StoreRemote(shared.partials[place], thread / threads,
                make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
  }
  ArriveCluster();
  WaitCluster();
  if (is_copying) return;
  const auto* partials = reinterpret_cast<const float*>(shared.partials);
  for (int at = thread; at < kSums * threads; at += Stages::kThreads) {
    float parts[kMost];
    BATON_UNROLL
    for (int s = 0; s < kMost; ++s) {
      if (s < problem.segments) parts[s] = partials[s * kSums * threads + at];
    }
    BATON_UNROLL
    for (int step = 1; step < kMost; step *= 2) {
      BATON_UNROLL
      for (int s = 0; s < kMost; s += 2 * step) {
        if (s + step < problem.segments) parts[s] += parts[s + step];
      }
    }
    const int owner = segment * threads + at / 4 % threads, i = at / 4 / threads * 4 + at % 4;
    StoreSum<Out>(problem, RowOf(owner, i), TokenOf<Stages>(owner, i), parts[0]);
  }
}

// The first half of a tile's rows are gates, the other half their ups, which lie so many threads
// behind as the tile has rows: those hand their sums over.
template <typename Stages>
BATON_DEVICE void HandUpsOver(Stages& shared, const Problem& problem,
                              const float (&sums)[Stages::kSums]) {
  const int threads = problem.rows, thread = threadIdx.x;  // Of gates.
  BATON_UNROLL
  for (int i = 0; i < Stages::kSums; i += 4) {
    if (thread < threads || thread >= 2 * threads) continue;
    shared.partials[i / 4 * threads + thread - threads] =
        make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  }
}

template <typename T, typename Stages>
BATON_DEVICE void GateAndStore(const Stages& shared, const Problem& problem,
                               const float (&sums)[Stages::kSums]) {
  const int threads = problem.rows, thread = threadIdx.x;
  if (thread >= threads) return;
  const auto* ups = reinterpret_cast<const float*>(shared.partials);
  BATON_UNROLL
  for (int i = 0; i < Stages::kSums; ++i) {
    const int64_t column = int64_t{blockIdx.z} * (problem.rows / 2) + RowOf(thread, i);
    const int token = TokenOf<Stages>(thread, i);
    if (column >= problem.n || token >= problem.m) continue;
    float gate = sums[i], up = ups[(i / 4 * threads + thread) * 4 + i % 4];
    if (problem.bias != nullptr) {
      gate += problem.bias[column];
      up += problem.bias[problem.n + column];
    }
    static_cast<T*>(problem.out)[token * problem.out_stride + column] =
        Gated<T>(problem.activation, gate, up);
  }
}

template <typename T, typename Out, int kRows, int kTokens, bool kGated>
__global__ void __launch_bounds__(2 * kRows + 32, BlocksOfSm(kTokens))
    SmallGemmSm90Kernel(const __grid_constant__ TensorMap weights,
                        const __grid_constant__ TensorMap tokens, Problem problem) {
  using Stages = Shared<T, kRows, kTokens>;
  auto& shared = SharedMemory<Stages>();
  const int first_tiles = min(Stages::kStages, problem.tiles);
  const bool is_copying = threadIdx.x >= Stages::kThreads;
  if (threadIdx.x == Stages::kThreads) {
    for (int stage = 0; stage < Stages::kStages; ++stage) {
      InitMbarrier(shared.full[stage], 1);
      InitMbarrier(shared.empty[stage], Stages::kThreads / 32);  // A lane of each warp.
    }
    FenceProxy();
    BATON_ROLLED
    for (int tile = 0; tile < first_tiles; ++tile) {
      CopyTile<kGated>(shared, weights, tokens, problem, tile, tile);
    }
  }
  if (problem.rows < kRows && !is_copying) {
    ClearRows(shared, problem.rows, first_tiles);
    FenceProxy();
  }
  __syncwarp();  // A cluster's barrier takes whole warps.
  if (!kGated && problem.segments > 1) ArriveCluster();
  __syncthreads();
  float sums[Stages::kSums];
  if (!is_copying) {
    Multiply(shared, problem.tiles, sums);
  } else if (threadIdx.x == Stages::kThreads) {
    CopyOthers<kGated>(shared, weights, tokens, problem);
  }
  if constexpr (kGated) {
    if (!is_copying) HandUpsOver(shared, problem, sums);
    __syncthreads();
    GateAndStore<T>(shared, problem, sums);
  } else if (problem.segments > 1) {
    __syncwarp();
    FoldAndStore<Out>(shared, problem, is_copying, sums);
  } else if (!is_copying) {
    BATON_UNROLL
    for (int i = 0; i < Stages::kSums; ++i) {
      StoreSum<Out>(problem, RowOf(threadIdx.x, i), TokenOf<Stages>(threadIdx.x, i), sums[i]);
    }
  }
}

}  // namespace small_gemm_sm90

namespace {

using small_gemm_sm90::kMostTokens;
using small_gemm_sm90::Problem;

// Few rows of weights are cut into smaller tiles, so that every SM has one. Of many tokens a tile
// has the more bytes the fewer weights it has: it is cut if most SMs would have none.
int RowsOfTile(const GemmArgs& args) {
  const auto blocks = [&](int rows, int tokens) {
    return int64_t{BlocksFor(args.n(), rows)} * BlocksFor(args.m, tokens) * args.segments;
  };
  if (args.m > kMostTokens / 2) {
    return 4 * blocks(128, kMostTokens) < 3 * gemm_sm90::kSms ? 64 : 128;
  }
  return blocks(64, kMostTokens) < gemm_sm90::kSms ? 32 : 64;
}

struct Maps {
  TensorMap weights;
  TensorMap tokens;
};

template <typename T, typename Out, int kRows, int kTokens, bool kGated>
cudaError_t LaunchSmall(const GemmArgs& args, Maps& maps, const Problem& problem,
                        cudaStream_t stream) {
  const cudaError_t error = gemm_sm90::MapOf(maps.tokens, args.a.data, args.m, args.a_stride,
                                             args.weights->k(), args.segments, kTokens);
  if (error != cudaSuccess) return error;
  const int outputs = kGated ? problem.rows / 2 : problem.rows;
  const auto kernel = small_gemm_sm90::SmallGemmSm90Kernel<T, Out, kRows, kTokens, kGated>;
  const dim3 grid(problem.segments, BlocksFor(args.m, kTokens), BlocksFor(problem.n, outputs));
  using Stages = small_gemm_sm90::Shared<T, kRows, kTokens>;
  if (problem.segments == 1) {
    return Launch(kernel, grid, Stages::kBlockThreads, sizeof(Stages), stream, maps.weights,
                  maps.tokens, problem);
  }
  return LaunchClusters(kernel, problem.segments, grid, Stages::kBlockThreads, sizeof(Stages),
                        stream, maps.weights, maps.tokens, problem);
}

template <typename T, typename Out, bool kGated>
cudaError_t ChooseTokens(const GemmArgs& args, Maps& maps, const Problem& problem,
                         cudaStream_t stream) {
  if (args.m <= 8) return LaunchSmall<T, Out, 64, 8, kGated>(args, maps, problem, stream);
  if (args.m <= 16) return LaunchSmall<T, Out, 64, 16, kGated>(args, maps, problem, stream);
  if (args.m <= 32) return LaunchSmall<T, Out, 64, 32, kGated>(args, maps, problem, stream);
  if (args.m <= 64) return LaunchSmall<T, Out, 64, 64, kGated>(args, maps, problem, stream);
  return problem.rows == 64
             ? LaunchSmall<T, Out, 64, kMostTokens, kGated>(args, maps, problem, stream)
             : LaunchSmall<T, Out, 128, kMostTokens, kGated>(args, maps, problem, stream);
}

Problem ProblemOf(const GemmArgs& args, int64_t n) {
  const int64_t k = args.weights->k() / args.segments;
  return {.n = n,
          .m = static_cast<int>(args.m),
          .rows = RowsOfTile(args),
          .tiles = static_cast<int>(BlocksFor(k, gemm::kTileK)),
          .segments = args.segments,
          .activation = {},
          .bias = args.bias,
          .out = args.out.data,
          .out_stride = args.out_stride};
}

ConstFloats FirstRow(const GemmArgs& args) {
  return FloatsOf(*args.weights).At(args.first_row * RowStride(args.weights->k()));
}

}  // namespace

bool SmallGemmSm90Pays(const GemmArgs& args) {
  if (args.m <= kMostTokens / 2) return true;
  // Segments of more would be more clusters than an H100 runs at a time.
  if (args.m > (args.segments > 1 ? kMostTokens : 2 * kMostTokens)) return false;
  const int64_t others =
      int64_t{BlocksFor(args.m, gemm_sm90::kTile)} * BlocksFor(args.n(), gemm_sm90::kTile);
  return (args.segments > 1 ? others : 2 * others) < gemm_sm90::kSms;
}

cudaError_t SmallGemmSm90(const GemmArgs& args, cudaStream_t stream) {
  const int64_t k = args.weights->k(), n = args.n();
  const Problem problem = ProblemOf(args, n);
  Maps maps;
  const cudaError_t error = gemm_sm90::MapOf(maps.weights, FirstRow(args).data, n, RowStride(k), k,
                                             args.segments, problem.rows);
  if (error != cudaSuccess) return error;
  const bool is_f32 = args.out.dtype == DType::kF32;
  if (args.a.dtype == DType::kBF16) {
    return is_f32 ? ChooseTokens<Bf16, float, false>(args, maps, problem, stream)
                  : ChooseTokens<Bf16, Bf16, false>(args, maps, problem, stream);
  }
  return is_f32 ? ChooseTokens<F16, float, false>(args, maps, problem, stream)
                : ChooseTokens<F16, F16, false>(args, maps, problem, stream);
}

cudaError_t SmallGatedGemmSm90(const GatedGemmArgs& args, cudaStream_t stream) {
  const GemmArgs& product = args.product;
  const int64_t k = product.weights->k(), n = product.n() / 2;
  Problem problem = ProblemOf(product, n);
  problem.activation = args.activation;
  problem.out = args.out.data;
  problem.out_stride = args.out_stride == 0 ? n : args.out_stride;
  Maps maps;
  const cudaError_t error = gemm_sm90::MapOfGates(maps.weights, FirstRow(product).data, n,
                                                  RowStride(k), k, problem.rows / 2);
  if (error != cudaSuccess) return error;
  if (product.a.dtype == DType::kBF16) {
    return ChooseTokens<Bf16, Bf16, true>(product, maps, problem, stream);
  }
  return ChooseTokens<F16, F16, true>(product, maps, problem, stream);
}

}  // namespace baton::cuda
