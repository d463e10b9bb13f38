#include <array>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_copies_sm90.h"
#include "kernels/cuda/attention_problem.h"
#include "kernels/cuda/attention_sm90.h"

namespace baton::cuda {
namespace attention_sm90 {

using attention::kPartialKeys;
using attention::Row;

// What a consumer works on, and how far it is.
template <typename Shape>
struct Consumer {
  int first_row;    // In Q's tile.
  int first_chunk;  // Of V's columns.
  int lane;
  bool arrives;
  Ring<Shape::kStages> k_ring, v_ring;
  Row rows[2];
  float scores[kStepKeys / 8][4];
  uint32_t probabilities[kStepKeys / 8][2];
  float sums[Shape::kColumns / 8][4];
};

template <int kCount, int kEach, typename T>
BATON_DEVICE auto& Flat(T (&array)[kCount][kEach]) {
  return reinterpret_cast<T(&)[kCount * kEach]>(array);
}

// Begins the products of Q and the next tile of K. Nothing else may touch the registers of scores
// until EndScores.
template <typename Shape, typename T>
BATON_DEVICE void BeginScores(Shared<Shape, T>& shared, int stage, Consumer<Shape>& me) {
  auto& scores = Flat(me.scores);
  // Of many chunks, addresses that are found out once are more than a warp has registers for.
  const int row = Shape::kSharesRows ? Uniform(me.first_row) : me.first_row;
  BATON_UNROLL
  for (int c = 0; c < Shape::kChunks; ++c) {
    BATON_UNROLL
    for (int k = 0; k < kTileColumns; k += 16) {
      const T *q = &shared.q[c][row][k], *keys = &shared.k[stage][c][0][k];
      if (c == 0 && k == 0) {
        MultiplyAnewAsync(scores, q, keys);
      } else {
        MultiplyAsync(scores, q, keys);
      }
    }
  }
  CommitProducts();
}

// Ends them, but for groups that began later.
template <int kPendingGroups, typename Shape, typename T>
BATON_DEVICE void EndScores(Shared<Shape, T>& shared, Consumer<Shape>& me) {
  FinishSums<kPendingGroups>(Flat(me.scores));
  if (me.arrives) Arrive(shared.k_empty[me.k_ring.stage]);
  me.k_ring.Advance();
}

// The same of the products of probabilities and the next tile of V, behind a fence for both.
template <typename Shape, typename T>
BATON_DEVICE void BeginValues(Shared<Shape, T>& shared, int stage, Consumer<Shape>& me) {
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 16; ++j) {
    MultiplyAsync(Flat(me.sums), Flat(me.probabilities), j,
                  &shared.v[stage][me.first_chunk][16 * j][0]);
  }
  CommitProducts();
}

template <typename Shape, typename T>
BATON_DEVICE void EndValues(Shared<Shape, T>& shared, Consumer<Shape>& me) {
  FinishSums(Flat(me.sums), Flat(me.probabilities));
  if (me.arrives) Arrive(shared.v_empty[me.v_ring.stage]);
  me.v_ring.Advance();
}

// What partials were folded into.
template <typename Shape>
struct Totals {
  attention::SoftmaxState states[2];
  float sums[Shape::kColumns / 8][4];
};

template <typename Shape>
BATON_DEVICE void Fold(const attention::SoftmaxState (&ended)[2], Consumer<Shape>& me,
                       Totals<Shape>& totals) {
  attention::FoldPartial<Shape::kColumns>(
      ended, me.sums, totals.states,
      [&](int h, int d, int c) -> float& { return totals.sums[d][2 * h + c]; });
}

// The first step, beside no products with V.
template <typename Shape, typename T>
BATON_DEVICE void BeginKeys(Shared<Shape, T>& shared, const Problem& args, float scale, int key,
                            Consumer<Shape>& me) {
  float factors[2];
  const int stage = Uniform(me.k_ring.stage);
  Wait(shared.k_full[stage], me.k_ring.parity);
  FenceSums(Flat(me.scores));
  BeginScores(shared, stage, me);
  EndScores<0>(shared, me);
  attention::Softmax<T>(args, scale, key, me.lane, me.rows, me.scores, factors);
  attention::Pack<T>(me.scores, me.probabilities);
}

// A step's softmax runs beside the products of the one before with V, also where a partial ends
// with that. What they need is fenced and waited for before the first of them begins: nvcc has no
// two groups in flight if anything stands between.
template <typename Shape, typename T>
BATON_DEVICE void AddKeys(Shared<Shape, T>& shared, const Problem& args, float scale, int key,
                          Consumer<Shape>& me, Totals<Shape>& totals) {
  const int k_stage = Uniform(me.k_ring.stage), v_stage = Uniform(me.v_ring.stage);
  Wait(shared.k_full[k_stage], me.k_ring.parity);
  Wait(shared.v_full[v_stage], me.v_ring.parity);
  FenceSums(Flat(me.scores));
  FenceSums(Flat(me.sums), Flat(me.probabilities));
  BeginScores(shared, k_stage, me);
  BeginValues(shared, v_stage, me);
  EndScores<1>(shared, me);
  const bool begins = key % kPartialKeys == 0;
  attention::SoftmaxState ended[2];
  float factors[2];
  if (begins) attention::EndPartial(me.rows, ended);
  attention::Softmax<T>(args, scale, key, me.lane, me.rows, me.scores, factors);
  EndValues(shared, me);
  if (begins) {
    Fold(ended, me, totals);
  } else {
    attention::ScaleSums<Shape::kColumns>(factors, me.sums);
  }
  attention::Pack<T>(me.scores, me.probabilities);
}

template <typename Shape, typename T>
BATON_DEVICE void EndKeys(Shared<Shape, T>& shared, Consumer<Shape>& me, Totals<Shape>& totals) {
  const int stage = Uniform(me.v_ring.stage);
  Wait(shared.v_full[stage], me.v_ring.parity);
  FenceSums(Flat(me.sums), Flat(me.probabilities));
  BeginValues(shared, stage, me);
  EndValues(shared, me);
  attention::SoftmaxState ended[2];
  attention::EndPartial(me.rows, ended);
  Fold(ended, me, totals);
}

template <typename Shape, typename Out>
BATON_DEVICE void StoreRow(const Problem& args, Out* to, const Consumer<Shape>& me, int h,
                           const float (&totals)[Shape::kColumns / 8][4], float factor) {
  const int first = me.first_chunk * kTileColumns;
  BATON_UNROLL
  for (int d = 0; d < Shape::kColumns / 8; ++d) {
    if (first + 8 * d >= args.v_cache.dim) break;
    BATON_UNROLL
    for (int c = 0; c < 2; ++c) {
      to[first + 8 * d + me.lane % 4 * 2 + c] = FromFloat<Out>(totals[d][2 * h + c] * factor);
    }
  }
}

template <typename T, typename Shape>
BATON_DEVICE void StoreRows(const Problem& args, const BlockWork& work, const Consumer<Shape>& me,
                            int warp, const Totals<Shape>& totals) {
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = me.first_row + warp * 16 + me.lane / 4 + 8 * h;
    if (row >= work.num_rows) continue;
    const int64_t token = work.sequence.first_token + (work.first_row + row) / work.group;
    const int head = work.kv_head * work.group + (work.first_row + row) % work.group;
    const float factor = attention::EndRow(args, totals.states[h], token, head, work.kv_head,
                                           me.lane % 4 == 0 && me.first_chunk == 0);
    const int64_t at = attention::FirstResult(args, token, head);
    if (args.out.dtype == DType::kF32) {
      StoreRow(args, static_cast<float*>(args.out.data) + at, me, h, totals.sums, factor);
    } else {
      StoreRow(args, static_cast<T*>(args.out.data) + at, me, h, totals.sums, factor);
    }
  }
}

template <typename Shape, typename T>
BATON_DEVICE void Consume(Shared<Shape, T>& shared, const Problem& args, const BlockWork& work,
                          int consumer, float scale) {
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
  Consumer<Shape> me;
  me.first_row = Shape::kSharesRows ? 0 : 64 * consumer;
  me.first_chunk = Shape::kSharesRows ? consumer * (Shape::kColumns / kTileColumns) : 0;
  me.lane = threadIdx.x % 32;
  me.arrives = me.lane == 0;
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    me.rows[h] = attention::RowOf(args, work, me.first_row + warp * 16 + me.lane / 4 + 8 * h);
  }
  Totals<Shape> totals{
      .states = {{attention::MinusInfinity(), 0.0f}, {attention::MinusInfinity(), 0.0f}},
      .sums = {}};
  BATON_UNROLL
  for (int i = 0; i < Shape::kColumns / 2; ++i) Flat(me.sums)[i] = 0;
  BATON_UNROLL
  for (int i = 0; i < kStepKeys / 2; ++i) Flat(me.scores)[i] = 0;
  int key = work.keys.begin / kStepKeys * kStepKeys;
  if (key < work.keys.end) {
    Wait(shared.q_full, 0);
    BeginKeys(shared, args, scale, key, me);
    BATON_ROLLED
    for (key += kStepKeys; key < work.keys.end; key += kStepKeys) {
      AddKeys(shared, args, scale, key, me, totals);
    }
    EndKeys(shared, me, totals);
  }
  StoreRows<T>(args, work, me, warp, totals);
}

template <typename Shape, typename T>
BATON_DEVICE void InitBarriers(Shared<Shape, T>& shared, int consumers) {
  InitMbarrier(shared.q_full, 1);
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    InitMbarrier(shared.k_full[stage], 1);
    InitMbarrier(shared.v_full[stage], 1);
    InitMbarrier(shared.k_empty[stage], 4 * consumers);  // A lane of each warp.
    InitMbarrier(shared.v_empty[stage], 4 * consumers);
  }
}

template <int kDim, typename T>
__global__ void __launch_bounds__(kThreads, 1)
    AttentionSm90Kernel(const __grid_constant__ Maps maps, Problem args, Tiling tiling,
                        float scale) {
  using Form = Shape<kDim>;
  auto& shared = SharedMemory<Shared<Form, T>>();
  const BlockWork work = WorkOf(args, tiling);
  if (work.num_rows == 0) return;
  const int consumers = Form::kSharesRows || work.num_rows > 64 ? 2 : 1;
  if (threadIdx.x == 0) InitBarriers(shared, consumers);
  ClearRows(shared, tiling.queries * work.group);
  FenceProxy();
  __syncthreads();
  const int consumer = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup - 1);
  if (consumer < 0) {
    GiveRegisters<24>();
    if (work.keys.begin >= work.keys.end) return;
    if (threadIdx.x == 0) CopyQueries(shared, maps, tiling, work);
    if (threadIdx.x < 32) {
      Produce<false>(shared, maps, args, work, tiling.box_keys);
    } else if (threadIdx.x < 64) {
      Produce<true>(shared, maps, args, work, tiling.box_keys);
    }
  } else if (consumer < consumers) {
    TakeRegisters<240>();
    Consume(shared, args, work, consumer, scale * attention::ScaleOf(args.k_cache, work.kv_head));
  }
}

}  // namespace attention_sm90

namespace {

using attention::Problem;
using attention::ProblemOf;
using attention_sm90::Maps;
using attention_sm90::Tiling;

uint64_t Of(int64_t x) { return static_cast<uint64_t>(x); }

cudaError_t MapOfQueries(TensorMap& map, const Problem& args, int group, int queries) {
  const std::array sizes = {Of(args.k_cache.dim), Of(args.num_heads), Of(args.num_tokens)};
  const std::array strides = {Of(args.k_cache.dim * 2), Of(args.q_stride * 2)};
  const std::array<uint32_t, 3> box = {attention_sm90::kTileColumns, static_cast<uint32_t>(group),
                                       static_cast<uint32_t>(queries)};
  return EncodeTensorMap(map, args.q.data, sizes, strides, box);
}

cudaError_t MapOfKeys(TensorMap& map, const CachePlane& cache, int box_keys) {
  const std::array sizes = {Of(cache.dim), Of(cache.block_size), Of(cache.num_heads),
                            Of(cache.num_blocks)};
  const std::array strides = {Of(attention::TokenStride(cache) * 2),
                              Of(attention::HeadStride(cache) * 2), Of(cache.block_stride * 2)};
  const std::array<uint32_t, 4> box = {attention_sm90::kTileColumns,
                                       static_cast<uint32_t>(box_keys), 1, 1};
  return EncodeTensorMap(map, cache.data, sizes, strides, box);
}

cudaError_t MapsOf(Maps& maps, const Problem& args, const Tiling& tiling) {
  const int group = args.num_heads / args.k_cache.num_heads;
  for (const cudaError_t error :
       {MapOfQueries(maps.q, args, group, tiling.queries),
        MapOfKeys(maps.k, args.k_cache, tiling.box_keys),
        MapOfKeys(maps.v, args.v_cache, tiling.box_keys),
        MapOfKeys(maps.v_groups, args.v_cache, attention_sm90::kGroupKeys),
        MapOfKeys(maps.v_keys, args.v_cache, 1)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <int kDim, typename T>
cudaError_t LaunchSm90(const Problem& args, cudaStream_t stream) {
  using Form = attention_sm90::Shape<kDim>;
  const int queries = Form::kRows / (args.num_heads / args.k_cache.num_heads);
  const Tiling tiling{.queries = queries,
                      .box_keys = std::gcd(args.k_cache.block_size, attention::kStepKeys)};
  Maps maps;
  const cudaError_t error = MapsOf(maps, args, tiling);
  if (error != cudaSuccess) return error;
  // As many tiles as there may be: a sequence's last one may have few queries.
  const int64_t tiles = args.num_tokens / queries + args.num_seqs;
  const dim3 grid(BlocksFor(tiles * args.k_cache.num_heads, 1));
  return Launch(attention_sm90::AttentionSm90Kernel<kDim, T>, grid, attention_sm90::kThreads,
                sizeof(attention_sm90::Shared<Form, T>), stream, maps, args, tiling,
                attention::ScaleOfScores(args));
}

template <typename T>
cudaError_t ChooseForm(const Problem& args, cudaStream_t stream) {
  if (args.k_cache.dim <= 64) return LaunchSm90<64, T>(args, stream);
  if (args.k_cache.dim <= 128) return LaunchSm90<128, T>(args, stream);
  return LaunchSm90<256, T>(args, stream);
}

}  // namespace

bool AttentionSm90Takes(const VarlenAttentionArgs& args) {
  if (args.num_seqs == 0 || args.num_tokens <= 0 || args.max_seqlen_q <= 0 ||
      args.max_seqlen_k <= 0 || args.cu_seqlens_q == nullptr || !FastAttentionServes(args)) {
    return false;
  }
  const CachePlane &k = args.k_cache, &v = args.v_cache;
  return attention::IsAllowed(ProblemOf(args)) && k.dtype == args.q.dtype &&
         args.num_heads / k.num_heads <= attention_sm90::kMostGroup &&
         k.block_size % attention_sm90::kGroupKeys == 0 && v.block_size == k.block_size &&
         k.num_blocks > 0 && v.num_blocks > 0;
}

bool AttentionSm90Pays(const VarlenAttentionArgs& args) {
  constexpr int kOtherRows = 64, kOtherDim = 32;
  return AttentionSm90Takes(args) && args.k_cache.dim > kOtherDim &&
         int64_t{ProblemOf(args).max_query_len} * (args.num_heads / args.k_cache.num_heads) >
             kOtherRows;
}

cudaError_t AttentionSm90(const VarlenAttentionArgs& args, cudaStream_t stream) {
  const Problem problem = ProblemOf(args);
  if (args.q.dtype == DType::kBF16) return ChooseForm<Bf16>(problem, stream);
  return ChooseForm<F16>(problem, stream);
}

}  // namespace baton::cuda
