#include "kernels/cuda/attention_decode_sm90.h"

#include <array>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/ring.h"
#include "kernels/cuda/sm90_forms.h"

namespace baton::cuda {
namespace attention::decode {

// A block has one warp that computes partials, one that finds items for it and copies their tiles
// of K and V, and some that merge the partials of a KV head once all are there:
//
// what           | is written by                   | is read by        | once        | anew once
// tiles[stage]   | copies of warp 1                | warp 0            | full[stage] | empty[stage]
// items[slot]    | warp 1                          | warp 0            | listed      | done
// q              | warp 0                          | warp 0            | copied      | multiplied
// partials       | warp 0 of any block             | the merging warps | all counted | never
// counters       | warp 0, and the last leaves a 0 | warp 0            | atomically
// post           | warp 0, if it counted the last  | the merging warps | posted      | taken
//
// An item without keys has no tile and no partial, and is not counted. Nobody waits for another
// block.
constexpr int kRows = 16;
constexpr int kSlots = 8;  // Of items: as many as the copying warp may be ahead.
constexpr int kPanelColumns = 64;
constexpr int kMostBoxRows = 16;  // Of whole boxes; those at the ends of what is visible have one.
// Fewer where the computing warp needs more registers: of these a quarter of an
// SM has room for two.
template <int kPanels>
constexpr int kMergers = kPanels == 1 ? 4 : 2;
template <int kPanels>
constexpr int kThreads = 32 * (2 + kMergers<kPanels>);

// One partial of a KV head. Its place counts steps, of all KV heads of all sequences in turn.
struct Item {
  BlockWork work;  // With no keys but those of the partial. Behind the last item s is below 0.
  int first;       // The partials that the sequence has; none if last < first.
  int last;
  int partial;
  int64_t begin;
  int64_t end;
};

// Which KV head's partials are all there.
struct Post {
  int64_t s;  // Below 0: no more will come.
  int kv_head;
};

template <int kPanels, typename T>
struct Shared {
  static constexpr int kStages = 12 / kPanels;
  using Tile = T[kPanels][kStepKeys][kPanelColumns];

  alignas(1024) Tile tiles[kStages];
  alignas(16) T q[kRows][kRowElements<kPanels * kPanelColumns>];
  Item items[kSlots];
  Post post;
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
  Mbarrier listed[kSlots];
  Mbarrier done[kSlots];
  Mbarrier posted;
  Mbarrier taken;
};

constexpr size_t kHalfOfShared = (228 << 10) / 2 - 1024;  // An SM has room for two blocks of it.
static_assert(sizeof(Shared<1, Bf16>) <= kHalfOfShared);
static_assert(sizeof(Shared<2, Bf16>) <= kHalfOfShared);
static_assert(sizeof(Shared<3, Bf16>) <= kHalfOfShared);
static_assert(sizeof(Shared<4, Bf16>) <= kHalfOfShared);

// A plane of the cache as (column, token of a block, head, block).
struct PlaneMaps {
  TensorMap boxes;  // Of box_rows tokens.
  TensorMap rows;   // Of one.
  int box_rows;     // Divides the tokens of a block and a step.
};

// Steps of one KV head: one at least if it has rows, so that somebody writes their zeros.
BATON_DEVICE int64_t StepsOf(const Problem& args, int64_t s) {
  if (s >= args.num_seqs) return 0;
  const BlockWork work = WorkOfRows(args, s, 0, 0, kRows);
  if (work.num_rows == 0) return 0;
  return max(1, (work.keys.end - 1) / kStepKeys + 1 - work.keys.begin / kStepKeys);
}

// A warp's way through the items of its block: of all steps it has an equal share, and the items
// that begin in it. Each lane has one of 32 sequences.
class Items {
 public:
  BATON_DEVICE explicit Items(const Problem& args) : args_(args) {
    Load(0, 0);
    while (first_ + 32 < args.num_seqs) Load(first_ + 32, Sum());
    const int64_t steps = Sum();
    next_ = steps * blockIdx.x / gridDim.x;
    end_ = steps * (blockIdx.x + 1) / gridDim.x;
    if (first_ > 0) Load(0, 0);
  }

  BATON_DEVICE Item Next() {
    Item item;
    while (next_ < end_) {
      item = At(next_);
      const bool begins = item.begin == next_;  // Else it is that of the block before.
      next_ = item.end;
      if (begins) return item;
    }
    item.work.s = -1;
    return item;
  }

 private:
  // Sequences from `first` on, behind so many steps.
  BATON_DEVICE void Load(int64_t first, int64_t before) {
    const int lane = threadIdx.x % 32;
    first_ = first;
    steps_ = StepsOf(args_, first + lane);
    sum_ = steps_ * args_.k_cache.num_heads;
    BATON_UNROLL
    for (int by = 1; by < 32; by *= 2) {
      const int64_t other = __shfl_up_sync(~0u, sum_, by);
      if (lane >= by) sum_ += other;
    }
    sum_ += before;
  }
  BATON_DEVICE int64_t Sum() const { return __shfl_sync(~0u, sum_, 31); }

  BATON_DEVICE Item At(int64_t place) {
    while (Sum() <= place) Load(first_ + 32, Sum());
    const int lane = __ffs(static_cast<int>(__ballot_sync(~0u, sum_ > place))) - 1;
    const int64_t steps = __shfl_sync(~0u, steps_, lane);
    const int64_t before = __shfl_sync(~0u, sum_, lane) - steps * args_.k_cache.num_heads;
    const auto kv_head = static_cast<int>((place - before) / steps);
    const auto step = static_cast<int>((place - before) % steps);
    Item item;
    item.work = WorkOfRows(args_, first_ + lane, kv_head, 0, kRows);
    KeyRange& keys = item.work.keys;
    item.first = keys.begin / kPartialKeys;
    item.last = keys.begin < keys.end ? (keys.end - 1) / kPartialKeys : item.first - 1;
    constexpr int kSteps = kPartialKeys / kStepKeys;
    const int first_step = keys.begin / kStepKeys, at = first_step + step;
    item.partial = at / kSteps;
    item.begin = place - (at - max(first_step, item.partial * kSteps));
    item.end = place + min(static_cast<int>(steps) - step, kSteps - at % kSteps);
    const int first_key = item.partial * kPartialKeys;
    keys.begin = max(keys.begin, first_key);
    if (keys.end - first_key > kPartialKeys) keys.end = first_key + kPartialKeys;
    return item;
  }

  const Problem& args_;
  int64_t first_;
  int64_t steps_;  // Of one KV head of the lane's sequence.
  int64_t sum_;    // Of all sequences up to it.
  int64_t next_;
  int64_t end_;
};

// A row of boxes side by side, `block` from the table or -1, of which a copy makes zeros.
template <int kPanels, typename T>
BATON_DEVICE void CopyRows(T (&tile)[kPanels][kStepKeys][kPanelColumns], const TensorMap& map,
                           Mbarrier& full, int row, int token, int kv_head, int block) {
  BATON_UNROLL
  for (int panel = 0; panel < kPanels; ++panel) {
    CopyBox(tile[panel][row], map, full, panel * kPanelColumns, token, kv_head, block);
  }
}

// K or V of keys [first, first + 64), by a warp: zeros where no row looks.
template <int kPanels, typename T>
BATON_DEVICE void CopyTile(Shared<kPanels, T>& shared, Ring<Shared<kPanels, T>::kStages>& ring,
                           const PlaneMaps& maps, const CachePlane& cache, const int32_t* table,
                           const BlockWork& work, int first) {
  auto& tile = shared.tiles[ring.stage];
  Mbarrier& full = shared.full[ring.stage];
  Wait(shared.empty[ring.stage], ring.parity ^ 1);  // At first nothing is in it.
  __syncwarp();  // All lanes have seen that phase before the next one can begin.
  if (threadIdx.x % 32 == 0) ArriveExpecting(full, sizeof(tile));
  for (int row = threadIdx.x % 32 * maps.box_rows; row < kStepKeys; row += 32 * maps.box_rows) {
    const int key = first + row, token = key % cache.block_size;
    const int begin = max(work.keys.begin - key, 0);
    const int end = min(work.keys.end - key, maps.box_rows);
    const int block = begin < end ? table[key / cache.block_size] : -1;
    if (begin >= end || end - begin == maps.box_rows) {
      CopyRows(tile, maps.boxes, full, row, token, work.kv_head, block);
      continue;
    }
    BATON_ROLLED
    for (int i = 0; i < maps.box_rows; ++i) {
      CopyRows(tile, maps.rows, full, row + i, token + i, work.kv_head,
               i >= begin && i < end ? block : -1);
    }
  }
  ring.Advance();
}

BATON_DEVICE int FirstStep(const BlockWork& work) {
  return work.keys.begin / kStepKeys * kStepKeys;
}

template <int kPanels, typename T>
BATON_DEVICE void Produce(Shared<kPanels, T>& shared, const PlaneMaps& k, const PlaneMaps& v,
                          const Problem& args) {
  Ring<Shared<kPanels, T>::kStages> ring;
  Ring<kSlots> slots;
  Items items(args);
  while (true) {
    const Item item = items.Next();
    Wait(shared.done[slots.stage], slots.parity ^ 1);
    __syncwarp();  // Likewise: an item without keys may be done at once.
    if (threadIdx.x % 32 == 0) {
      shared.items[slots.stage] = item;
      Arrive(shared.listed[slots.stage]);
    }
    slots.Advance();
    if (item.work.s < 0) return;
    const int32_t* table = TableOf(args, item.work.s);
    BATON_ROLLED
    for (int key = FirstStep(item.work); key < item.work.keys.end; key += kStepKeys) {
      CopyTile(shared, ring, k, args.k_cache, table, item.work, key);
      CopyTile(shared, ring, v, args.v_cache, table, item.work, key);
    }
  }
}

// Gives a stage of the ring back once all lanes have read it.
template <int kStages>
BATON_DEVICE void Release(Mbarrier (&empty)[kStages], Ring<kStages>& ring) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(empty[ring.stage]);
  ring.Advance();
}

// Sums over the keys of an item, relative to its maxima.
template <int kPanels, typename T>
BATON_DEVICE void SumKeys(Shared<kPanels, T>& shared, Ring<Shared<kPanels, T>::kStages>& ring,
                          const Problem& args, const BlockWork& work, float scale, Row (&rows)[2],
                          float (&sums)[kPanels * kPanelColumns / 8][4]) {
  constexpr int kDim = kPanels * kPanelColumns;
  const int lane = threadIdx.x % 32;
  // As the copies have swizzled them: chunks of 16 bytes trade places by their row.
  const auto at = [&](int row, int column) {
    return &shared.tiles[ring.stage][column / kPanelColumns][row]
                        [(column / 8 ^ row % 8) % (kPanelColumns / 8) * 8];
  };
  BATON_ROLLED
  for (int key = FirstStep(work); key < work.keys.end; key += kStepKeys) {
    float scores[kStepKeys / 8][4] = {};
    Wait(shared.full[ring.stage], ring.parity);
    MultiplyKeys<kDim>(shared.q, at, lane, scores);
    Release(shared.empty, ring);
    uint32_t probabilities[kStepKeys / 8][2];
    float factors[2];
    Softmax<T>(args, scale, key, lane, rows, scores, factors);
    Pack<T>(scores, probabilities);
    ScaleSums<kDim>(factors, sums);
    Wait(shared.full[ring.stage], ring.parity);
    MultiplyValues<kDim, T>(at, lane, probabilities, sums);
    Release(shared.empty, ring);
  }
}

// With the bits of a partial that was folded into nothing.
template <int kColumns>
BATON_DEVICE void StorePartial(const Problem& args, const Scratch& scratch, const Item& item,
                               Row (&rows)[2], const float (&sums)[kColumns / 8][4]) {
  const int lane = threadIdx.x % 32;
  const BlockWork& work = item.work;
  BATON_UNROLL
  for (int h = 0; h < 2; ++h) {
    SoftmaxState& state = rows[h].state;
    state.sum = RowSum(state.sum);
    SoftmaxState total{MinusInfinity(), 0.0f};
    FoldFactors by{1.0f, 0.0f};
    if (state.max > MinusInfinity()) by = Fold(total, state);
    const int row = lane / 4 + 8 * h;
    if (row >= work.num_rows) continue;
    const int64_t token = work.sequence.first_token + row / work.group;
    const int64_t head = work.kv_head * work.group + row % work.group;
    const int64_t scratch_row = token * args.num_heads + head;
    if (lane % 4 == 0) {
      float* to = scratch.StateOf(scratch_row, item.partial);
      to[0] = total.max;
      to[1] = total.sum;
    }
    float* const to = scratch.SumsOf(scratch_row, item.partial) + lane % 4 * 2;
    BATON_UNROLL
    for (int d = 0; d < kColumns / 8; ++d) {
      if (8 * d >= args.v_cache.dim) continue;
      *reinterpret_cast<float2*>(to + 8 * d) =
          make_float2(Fold(by, 0.0f, sums[d][2 * h]), Fold(by, 0.0f, sums[d][2 * h + 1]));
    }
  }
}

// Tells the merging warps, once they have taken what was posted before.
template <typename Stages>
BATON_DEVICE void Tell(Stages& shared, Ring<1>& posts, const Post& post) {
  Wait(shared.taken, posts.parity ^ 1);
  shared.post = post;
  Arrive(shared.posted);
  posts.Advance();
}

// By one lane, behind what the warp has stored.
template <typename Stages>
BATON_DEVICE void CountPartial(Stages& shared, Ring<1>& posts, uint32_t* counters,
                               int num_kv_heads, const Item& item) {
  const BlockWork& work = item.work;
  if (item.last > item.first) {
    __threadfence();  // Whoever counts later sees the partial ...
    const auto others = static_cast<uint32_t>(item.last - item.first);
    if (atomicInc(&counters[work.s * num_kv_heads + work.kv_head], others) != others) return;
    __threadfence();  // ... and those who count see what came before.
  }
  Tell(shared, posts, {work.s, work.kv_head});
}

template <int kPanels, typename T>
BATON_DEVICE void Consume(Shared<kPanels, T>& shared, const Problem& args, const Scratch& scratch,
                          uint32_t* counters, float scale) {
  constexpr int kDim = kPanels * kPanelColumns;
  const int lane = threadIdx.x;
  Ring<Shared<kPanels, T>::kStages> ring;
  Ring<kSlots> slots;
  Ring<1> posts;
  int64_t s = -1;  // Whose queries are in shared memory.
  int kv_head = -1;
  while (true) {
    Wait(shared.listed[slots.stage], slots.parity);
    const Item& item = shared.items[slots.stage];
    const BlockWork& work = item.work;
    if (work.s < 0) break;
    if (work.s != s || work.kv_head != kv_head) {
      LoadQueries<kDim, 1>(shared.q, args, work);
      CommitCopies();
      WaitCopies<0>();
      __syncwarp();
      s = work.s;
      kv_head = work.kv_head;
    }
    Row rows[2] = {RowOf(args, work, lane / 4), RowOf(args, work, lane / 4 + 8)};
    float sums[kDim / 8][4] = {};
    SumKeys(shared, ring, args, work, scale * ScaleOf(args.k_cache, work.kv_head), rows, sums);
    if (item.first <= item.last) StorePartial<kDim>(args, scratch, item, rows, sums);
    __syncwarp();
    if (lane == 0) CountPartial(shared, posts, counters, args.k_cache.num_heads, item);
    Release(shared.done, slots);
  }
  if (lane == 0) Tell(shared, posts, {-1, 0});
}

// The rows of a KV head, of which each warp takes some, 64 columns at a time.
template <int kWarps, typename T>
BATON_DEVICE void MergeRows(const Problem& args, const Scratch& scratch, const Post& post) {
  const int warp = threadIdx.x / 32 - 2, lane = threadIdx.x % 32;
  const BlockWork work = WorkOfRows(args, post.s, post.kv_head, 0, kRows);
  const int first = work.keys.begin / kPartialKeys;
  const int last = work.keys.begin < work.keys.end ? (work.keys.end - 1) / kPartialKeys : first - 1;
  const int parts = (args.v_cache.dim + kPanelColumns - 1) / kPanelColumns;
  for (int i = warp; i < work.num_rows * parts; i += kWarps) {
    const int row = i / parts, column = i % parts * kPanelColumns + 2 * lane;
    if (column >= args.v_cache.dim) continue;
    const int64_t token = work.sequence.first_token + row / work.group;
    const int head = work.kv_head * work.group + row % work.group;
    float sums[2] = {0.0f, 0.0f};
    const SoftmaxState total =
        FoldPartials(scratch, token * args.num_heads + head, first, last, column, sums);
    const float factor = EndRow(args, total, token, head, work.kv_head, column == 0);
    StoreResult<T>(args, token, head, column, sums[0] * factor);
    StoreResult<T>(args, token, head, column + 1, sums[1] * factor);
  }
}

template <int kPanels, typename T>
BATON_DEVICE void Merge(Shared<kPanels, T>& shared, const Problem& args, const Scratch& scratch) {
  Ring<1> posts;
  while (true) {
    Wait(shared.posted, posts.parity);
    const Post post = shared.post;
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(shared.taken);
    posts.Advance();
    if (post.s < 0) return;
    MergeRows<kMergers<kPanels>, T>(args, scratch, post);
  }
}

template <int kPanels, typename T>
__global__ void __launch_bounds__(kThreads<kPanels>, 2)
    DecodeSm90Kernel(const __grid_constant__ PlaneMaps k, const __grid_constant__ PlaneMaps v,
                     Problem args, Scratch scratch, uint32_t* counters, float scale) {
  auto& shared = SharedMemory<Shared<kPanels, T>>();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < shared.kStages; ++stage) {
      InitMbarrier(shared.full[stage], 1);
      InitMbarrier(shared.empty[stage], 1);
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      InitMbarrier(shared.listed[slot], 1);
      InitMbarrier(shared.done[slot], 1);
    }
    InitMbarrier(shared.posted, 1);
    InitMbarrier(shared.taken, kMergers<kPanels>);
    FenceProxy();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == 0) {  // LoadQueries counts threads from 0.
    Consume(shared, args, scratch, counters, scale);
  } else if (warp == 1) {
    Produce(shared, k, v, args);
  } else {
    Merge(shared, args, scratch);
  }
}

}  // namespace attention::decode

namespace {

using attention::Problem;
using attention::decode::PlaneMaps;

cudaError_t MapsOf(PlaneMaps& maps, const CachePlane& cache) {
  const auto of = [](int64_t x) { return static_cast<uint64_t>(x); };
  const std::array sizes = {of(cache.dim), of(cache.block_size), of(cache.num_heads),
                            of(cache.num_blocks)};
  const std::array strides = {of(attention::TokenStride(cache) * 2),
                              of(attention::HeadStride(cache) * 2), of(cache.block_stride * 2)};
  maps.box_rows = std::gcd(cache.block_size, attention::decode::kMostBoxRows);
  std::array<uint32_t, 4> box = {attention::decode::kPanelColumns, 1, 1, 1};
  const cudaError_t error = EncodeTensorMap(maps.rows, cache.data, sizes, strides, box);
  if (error != cudaSuccess) return error;
  box[1] = maps.box_rows;
  return EncodeTensorMap(maps.boxes, cache.data, sizes, strides, box);
}

template <int kPanels, typename T>
cudaError_t LaunchDecode(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  PlaneMaps k, v;
  if (const cudaError_t error = MapsOf(k, args.k_cache); error != cudaSuccess) return error;
  if (const cudaError_t error = MapsOf(v, args.v_cache); error != cudaSuccess) return error;
  int device = 0, sms = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const attention::Scratch scratch{NumPartials(args), args.k_cache.dim, args.scratch};
  return Launch(attention::decode::DecodeSm90Kernel<kPanels, T>, dim3(2 * sms),
                attention::decode::kThreads<kPanels>,
                sizeof(attention::decode::Shared<kPanels, T>), stream, k, v, args, scratch,
                room.counters.data(), attention::ScaleOfScores(args));
}

// Columns behind the head are zeros.
template <typename T>
cudaError_t ChoosePanels(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  if (args.k_cache.dim <= 64) return LaunchDecode<1, T>(args, room, stream);
  if (args.k_cache.dim <= 128) return LaunchDecode<2, T>(args, room, stream);
  if (args.k_cache.dim <= 192) return LaunchDecode<3, T>(args, room, stream);
  return LaunchDecode<4, T>(args, room, stream);
}

}  // namespace

bool IsDecodeOfSm90(const Problem& args, const AttentionRoom& room) {
  const int64_t rows = int64_t{args.max_query_len} * (args.num_heads / args.k_cache.num_heads);
  return rows <= attention::decode::kRows && args.k_cache.dtype == args.q.dtype &&
         args.scratch != nullptr && args.k_cache.num_blocks > 0 &&
         args.num_seqs * args.k_cache.num_heads <= std::ssize(room.counters) && TakesSm90Forms();
}

cudaError_t DecodeAttentionSm90(const Problem& args, const AttentionRoom& room,
                                cudaStream_t stream) {
  if (args.q.dtype == DType::kBF16) return ChoosePanels<Bf16>(args, room, stream);
  return ChoosePanels<F16>(args, room, stream);
}

}  // namespace baton::cuda
