#include "kernels/cuda/attention_sm90.h"

#include <array>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_places.h"
#include "kernels/cuda/attention_problem.h"
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/ring.h"

namespace baton::cuda {
namespace attention_sm90 {

using attention::BlockWork;
using attention::kPartialKeys;
using attention::kStepKeys;
using attention::Problem;
using attention::Row;

// One warp copies tiles of K and V, two warpgroups multiply: 64 rows each, or where heads are
// larger the same 64 rows and half of V's columns each.
//
// | mbarrier        | arrives, in each phase        | waits                                     |
// |-----------------|-------------------------------|-------------------------------------------|
// | q_full          | the copying warp, with bytes  | consumers, for its only phase             |
// | k_full, v_full  | the copying warp, with bytes  | consumers, in each round of the ring      |
// | k_empty, v_empty| a lane of each consuming warp | the copying warp, for the round before    |
//
// A consumer multiplies with K one tile ahead of V, and the copying warp needs no tile of K back
// before it copies the V beside it: so none waits for the other, however few stages there are.
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kTileColumns = 64;
constexpr int kMostGroup = 64;  // Heads that share one of K and V.

template <int kDim_>
struct Shape {
  static constexpr int kDim = kDim_;
  static constexpr bool kSharesRows = kDim > 128;
  static constexpr int kRows = kSharesRows ? 64 : 128;
  static constexpr int kColumns = kSharesRows ? kDim / 2 : kDim;  // Of V, for each consumer.
  static constexpr int kChunks = kDim / kTileColumns;
  static constexpr int kStages = kSharesRows ? 2 : 3;
};

template <typename Shape, typename T>
struct Shared {
  using Keys = T[Shape::kChunks][kStepKeys][kTileColumns];

  alignas(1024) T q[Shape::kChunks][Shape::kRows][kTileColumns];
  alignas(1024) Keys k[Shape::kStages];
  alignas(1024) Keys v[Shape::kStages];
  Mbarrier q_full;
  Mbarrier k_full[Shape::kStages], k_empty[Shape::kStages];
  Mbarrier v_full[Shape::kStages], v_empty[Shape::kStages];
};

constexpr size_t kMostShared = 227 << 10;  // Of a block of sm_90.
static_assert(sizeof(Shared<Shape<64>, Bf16>) <= kMostShared);
static_assert(sizeof(Shared<Shape<128>, Bf16>) <= kMostShared);
static_assert(sizeof(Shared<Shape<256>, Bf16>) <= kMostShared);

// V is also copied in boxes of 8 keys and of one, where some of a larger box are none to look at.
constexpr int kGroupKeys = 8;
struct Maps {
  TensorMap q;  // [token][head][column]
  TensorMap k;  // [block][head][token][column], as those of V.
  TensorMap v;
  TensorMap v_groups;
  TensorMap v_keys;
};

// Beside what all forms are told.
struct Tiling {
  int queries;   // Of a block: whole ones.
  int box_keys;  // Which lie in one block of the cache, of each copy.
};

BATON_DEVICE BlockWork WorkOf(const Problem& args, const Tiling& tiling) {
  const int num_kv_heads = args.k_cache.num_heads;
  const int rows = tiling.queries * (args.num_heads / num_kv_heads);
  const int64_t tile = blockIdx.x / num_kv_heads;
  const attention::Place place = attention::PlaceOf(args, tiling.queries, tile);
  if (place.s < 0) return {};
  return attention::WorkOfRows(args, place.s, static_cast<int>(blockIdx.x % num_kv_heads),
                               place.tile * rows, rows);
}

// Rows that no query has, so that products read what somebody wrote.
template <typename Shape, typename T>
BATON_DEVICE void ClearRows(Shared<Shape, T>& shared, int first_row) {
  constexpr int kVectors = kTileColumns / 8;
  const int each = (Shape::kRows - first_row) * kVectors;
  for (int i = threadIdx.x; i < each * Shape::kChunks; i += kThreads) {
    T* const row = shared.q[i / each][first_row + i % each / kVectors];
    *reinterpret_cast<uint4*>(row + i % kVectors * 8) = make_uint4(0, 0, 0, 0);
  }
}

// What the copying warp is about, for one tile.
struct Step {
  int first_key;
  int32_t entry;  // Of the table: lane i has that of keys [8 i, 8 i + 8) of the tile.
};

BATON_DEVICE int LiveKeys(const BlockWork& work, int first, int count) {
  return max(0, min(work.keys.end, first + count) - max(work.keys.begin, first));
}

BATON_DEVICE Step StepOf(const Problem& args, const BlockWork& work, int first_key) {
  Step step{first_key, 0};
  const int lane = threadIdx.x, key = first_key + kGroupKeys * lane;
  if (lane < kStepKeys / kGroupKeys && LiveKeys(work, key, kGroupKeys) > 0) {
    step.entry = attention::TableOf(args, work.s)[key / args.k_cache.block_size];
  }
  return step;
}

// Keys of the tile from `row` on, as many as the map's box has; zeros if they are not live.
template <int kChunks, typename T>
BATON_DEVICE void CopyKeys(T (*tile)[kStepKeys][kTileColumns], Mbarrier& full, const TensorMap& map,
                           const Problem& args, const BlockWork& work, int32_t entry, int row,
                           int key, bool live) {
  if (threadIdx.x != 0) return;
  const int block_size = args.k_cache.block_size;
  const int token = live ? key % block_size : block_size;  // Behind the end of every block.
  BATON_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    CopyBox(&tile[c][row][0], map, full, c * kTileColumns, token, work.kv_head, live ? entry : 0);
  }
}

// The tile of a plane. Of K, scores of keys that no row sees are not looked at; of V they would be
// multiplied by zero: boxes of `exact` planes have only keys to look at, or none.
template <int kChunks, typename T>
BATON_DEVICE void CopyTile(T (*tile)[kStepKeys][kTileColumns], Mbarrier& full,
                           const TensorMap& boxes, const Maps& exact, bool is_exact,
                           const Problem& args, const BlockWork& work, const Step& step,
                           int box_keys) {
  if (threadIdx.x == 0) ArriveExpecting(full, kChunks * sizeof(*tile));
  int count = 0;
  BATON_ROLLED
  for (int row = 0; row < kStepKeys; row += count) {
    const int key = step.first_key + row;
    const auto is_mixed = [&](int size) {
      const int live = LiveKeys(work, key, size);
      return is_exact && live > 0 && live < size;
    };
    count = box_keys;
    if (row % count != 0 || is_mixed(count)) count = kGroupKeys;
    if (row % count != 0 || is_mixed(count)) count = 1;
    const TensorMap& map = count == box_keys ? boxes : count == 1 ? exact.v_keys : exact.v_groups;
    // Some group of a box may be none to look at, but not all of it.
    int32_t entry = 0;
    for (int group = row / kGroupKeys; group * kGroupKeys < row + count; ++group) {
      const int32_t other = __shfl_sync(~0u, step.entry, group);
      if (LiveKeys(work, step.first_key + group * kGroupKeys, kGroupKeys) > 0) entry = other;
    }
    CopyKeys<kChunks>(tile, full, map, args, work, entry, row, key, LiveKeys(work, key, count) > 0);
  }
}

template <typename Shape, typename T>
BATON_DEVICE void Produce(Shared<Shape, T>& shared, const Maps& maps, const Problem& args,
                          const Tiling& tiling, const BlockWork& work) {
  if (threadIdx.x == 0) {
    const int rows = tiling.queries * work.group;
    ArriveExpecting(shared.q_full, Shape::kChunks * rows * kTileColumns * sizeof(T));
    for (int c = 0; c < Shape::kChunks; ++c) {
      CopyBox(shared.q[c], maps.q, shared.q_full, c * kTileColumns, work.kv_head * work.group,
              static_cast<int>(work.sequence.first_token) + work.first_row / work.group);
    }
  }
  Ring<Shape::kStages> ring;
  const int first = work.keys.begin / kStepKeys * kStepKeys;
  BATON_ROLLED
  for (int key = first; key < work.keys.end; key += kStepKeys, ring.Advance()) {
    const Step step = StepOf(args, work, key);
    Wait(shared.k_empty[ring.stage], ring.parity ^ 1);  // At first nothing is in it.
    CopyTile<Shape::kChunks>(shared.k[ring.stage], shared.k_full[ring.stage], maps.k, maps, false,
                             args, work, step, tiling.box_keys);
    Wait(shared.v_empty[ring.stage], ring.parity ^ 1);
    CopyTile<Shape::kChunks>(shared.v[ring.stage], shared.v_full[ring.stage], maps.v, maps, true,
                             args, work, step, tiling.box_keys);
  }
}

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

// Nothing but products may touch the registers of scores from here on, until EndScores.
template <typename Shape>
BATON_DEVICE void ClearScores(Consumer<Shape>& me) {
  auto& scores = Flat(me.scores);
  BATON_UNROLL
  for (int i = 0; i < kStepKeys / 2; ++i) scores[i] = 0;
  FenceSums(scores);
}

// Begins the products of Q and the next tile of K.
template <typename Shape, typename T>
BATON_DEVICE void BeginScores(Shared<Shape, T>& shared, Consumer<Shape>& me) {
  BATON_UNROLL
  for (int c = 0; c < Shape::kChunks; ++c) {
    BATON_UNROLL
    for (int k = 0; k < kTileColumns; k += 16) {
      MultiplyAsync(Flat(me.scores), &shared.q[c][me.first_row][k],
                    &shared.k[me.k_ring.stage][c][0][k]);
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
BATON_DEVICE void BeginValues(Shared<Shape, T>& shared, Consumer<Shape>& me) {
  BATON_UNROLL
  for (int j = 0; j < kStepKeys / 16; ++j) {
    MultiplyAsync(Flat(me.sums), Flat(me.probabilities), j,
                  &shared.v[me.v_ring.stage][me.first_chunk][16 * j][0]);
  }
  CommitProducts();
}

template <typename Shape, typename T>
BATON_DEVICE void EndValues(Shared<Shape, T>& shared, Consumer<Shape>& me) {
  FinishSums(Flat(me.sums), Flat(me.probabilities));
  if (me.arrives) Arrive(shared.v_empty[me.v_ring.stage]);
  me.v_ring.Advance();
}

// The keys of one partial, from `key` to `end`: the softmax of a step runs beside the products of
// the one before with V. What they need is fenced and waited for before the first of them begins:
// nvcc has no two groups in flight if anything stands between.
template <typename Shape, typename T>
BATON_DEVICE void AddPartial(Shared<Shape, T>& shared, const Problem& args, float scale, int key,
                             int end, Consumer<Shape>& me) {
  float factors[2];
  Wait(shared.k_full[me.k_ring.stage], me.k_ring.parity);
  ClearScores(me);
  BeginScores(shared, me);
  EndScores<0>(shared, me);
  attention::Softmax<T>(args, scale, key, me.lane, me.rows, me.scores, factors);
  attention::Pack<T>(me.scores, me.probabilities);
  BATON_ROLLED
  for (key += kStepKeys; key < end; key += kStepKeys) {
    Wait(shared.k_full[me.k_ring.stage], me.k_ring.parity);
    Wait(shared.v_full[me.v_ring.stage], me.v_ring.parity);
    ClearScores(me);
    FenceSums(Flat(me.sums), Flat(me.probabilities));
    BeginScores(shared, me);
    BeginValues(shared, me);
    EndScores<1>(shared, me);
    attention::Softmax<T>(args, scale, key, me.lane, me.rows, me.scores, factors);
    EndValues(shared, me);
    attention::ScaleSums<Shape::kColumns>(factors, me.sums);
    attention::Pack<T>(me.scores, me.probabilities);
  }
  Wait(shared.v_full[me.v_ring.stage], me.v_ring.parity);
  FenceSums(Flat(me.sums), Flat(me.probabilities));
  BeginValues(shared, me);
  EndValues(shared, me);
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
                            int warp, const attention::SoftmaxState (&states)[2],
                            const float (&totals)[Shape::kColumns / 8][4]) {
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = me.first_row + warp * 16 + me.lane / 4 + 8 * h;
    if (row >= work.num_rows) continue;
    const int64_t token = work.sequence.first_token + (work.first_row + row) / work.group;
    const int head = work.kv_head * work.group + (work.first_row + row) % work.group;
    const float factor = attention::EndRow(args, states[h], token, head, work.kv_head,
                                           me.lane % 4 == 0 && me.first_chunk == 0);
    const int64_t at = attention::FirstResult(args, token, head);
    if (args.out.dtype == DType::kF32) {
      StoreRow(args, static_cast<float*>(args.out.data) + at, me, h, totals, factor);
    } else {
      StoreRow(args, static_cast<T*>(args.out.data) + at, me, h, totals, factor);
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
  float totals[Shape::kColumns / 8][4];
  BATON_UNROLL
  for (int i = 0; i < Shape::kColumns / 2; ++i) Flat(totals)[i] = Flat(me.sums)[i] = 0;
  attention::SoftmaxState states[2] = {{attention::MinusInfinity(), 0.0f},
                                       {attention::MinusInfinity(), 0.0f}};
  int key = work.keys.begin / kStepKeys * kStepKeys;
  if (key < work.keys.end) Wait(shared.q_full, 0);
  BATON_ROLLED
  while (key < work.keys.end) {
    const int end = min(work.keys.end, (key / kPartialKeys + 1) * kPartialKeys);
    AddPartial(shared, args, scale, key, end, me);
    attention::FoldPartial<Shape::kColumns>(
        me.rows, me.sums, states,
        [&](int h, int d, int c) -> float& { return totals[d][2 * h + c]; });
    key = (key / kPartialKeys + 1) * kPartialKeys;
  }
  StoreRows<T>(args, work, me, warp, states, totals);
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
  const int consumer = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  if (consumer < 0) {
    GiveRegisters<24>();
    if (threadIdx.x < 32 && work.keys.begin < work.keys.end) {
      Produce(shared, maps, args, tiling, work);
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
