#include "kernels/cuda/attention_decode_sm90.h"

#include <array>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "kernels/cuda/attention_decode_codes.h"
#include "kernels/cuda/attention_decode_items.h"
#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/ring.h"
#include "kernels/cuda/sm90_forms.h"

namespace baton::cuda {
namespace attention::decode {

// A block has one warp that computes partials, one that finds items for it and copies their tiles
// of K and V, and some that merge the partials of a KV head once all are there. Where the cache is
// fp8, others make tiles of the codes that were copied:
//
// what           | is written by                   | is read by        | once        | anew once
// tiles[stage]   | copies of warp 1, or converters | warp 0            | full[stage] | empty[stage]
// codes.tiles    | copies of warp 1                | the converters    | codes.full  | codes.empty
// items[slot]    | warp 1                          | warp 0, converters| listed      | done
// q              | warp 0                          | warp 0            | copied      | multiplied
// partials       | warp 0 of any block             | the merging warps | all counted | never
// counters       | warp 0, and the last leaves a 0 | warp 0            | atomically
// post           | warp 0, if it counted the last  | the merging warps | posted      | taken
//
// An item without keys has no tile and no partial, and is not counted. Nobody waits for another
// block.
constexpr int kSlots = 8;  // Of items: as many as the copying warp may be ahead.
constexpr int kMostBoxRows = 16;  // Of whole boxes; those at the ends of what is visible have one.
// Fewer where the computing warp needs more registers, or others convert: of threads with so many
// an SM is to have room for two blocks.
template <int kPanels, bool kIsFp8>
constexpr int kMergers = kPanels == 1 && !kIsFp8 ? 4 : 2;
template <int kPanels, bool kIsFp8>
constexpr int kThreads = 32 * (2 + kMergers<kPanels, kIsFp8> + (kIsFp8 ? kConverters : 0));
static_assert(kMergers<1, true> == kConverters && kMergers<2, true> == kConverters);

// Which KV head's partials are all there.
struct Post {
  int64_t s;  // Below 0: no more will come.
  int kv_head;
};

template <int kNumPanels, typename T, bool kIsFp8>
struct Shared {
  static constexpr int kPanels = kNumPanels;
  static constexpr int kStages = (kIsFp8 ? 6 : 12) / kPanels;
  using Element = T;
  using Tile = TileOf<kPanels, T>;

  alignas(1024) Tile tiles[kStages];
  std::conditional_t<kIsFp8, CodeTiles, NoCodeTiles> codes;
  alignas(16) T q[kRows][kRowElements<kPanels * kPanelColumns>];
  Item items[kSlots];
  Post post;
  Mbarrier full[kStages];
  Mbarrier empty[kStages];
  Mbarrier listed[kSlots];
  Mbarrier done[kSlots];
  Mbarrier posted;
  Mbarrier taken;

  // The ring that copies fill.
  BATON_DEVICE auto& Copied() {
    if constexpr (kIsFp8) {
      return codes;
    } else {
      return *this;
    }
  }
};

constexpr size_t kHalfOfShared = (228 << 10) / 2 - 1024;  // An SM has room for two blocks of it.
static_assert(sizeof(Shared<1, Bf16, false>) <= kHalfOfShared);
static_assert(sizeof(Shared<2, Bf16, false>) <= kHalfOfShared);
static_assert(sizeof(Shared<3, Bf16, false>) <= kHalfOfShared);
static_assert(sizeof(Shared<4, Bf16, false>) <= kHalfOfShared);
static_assert(sizeof(Shared<1, Bf16, true>) <= kHalfOfShared);
static_assert(sizeof(Shared<2, Bf16, true>) <= kHalfOfShared);

// A plane of the cache as (column, token of a block, head, block).
struct PlaneMaps {
  TensorMap boxes;  // Of box_rows tokens.
  TensorMap rows;   // Of one.
  int box_rows;     // Divides the tokens of a block and a step.
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
template <typename Stages>
BATON_DEVICE void CopyTile(Stages& stages, Ring<Stages::kStages>& ring, const PlaneMaps& maps,
                           const CachePlane& cache, const int32_t* table, const BlockWork& work,
                           int first) {
  auto& tile = stages.tiles[ring.stage];
  Mbarrier& full = stages.full[ring.stage];
  Wait(stages.empty[ring.stage], ring.parity ^ 1);  // At first nothing is in it.
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

template <typename Shared>
BATON_DEVICE void Produce(Shared& shared, const PlaneMaps& k, const PlaneMaps& v,
                          const Problem& args) {
  auto& stages = shared.Copied();
  Ring<std::remove_reference_t<decltype(stages)>::kStages> ring;
  Ring<kSlots> slots;
  Items items(args);
  int64_t s = -1;  // Whose queries are in shared memory.
  int kv_head = -1;
  while (true) {
    Item item = items.Next();
    item.has_other_rows = item.work.s != s || item.work.kv_head != kv_head;
    s = item.work.s;
    kv_head = item.work.kv_head;
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
      CopyTile(stages, ring, k, args.k_cache, table, item.work, key);
      CopyTile(stages, ring, v, args.v_cache, table, item.work, key);
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
template <typename Shared, int kDim = Shared::kPanels * kPanelColumns>
BATON_DEVICE void SumKeys(Shared& shared, Ring<Shared::kStages>& ring, const Problem& args,
                          const BlockWork& work, float scale, Row (&rows)[2],
                          float (&sums)[kDim / 8][4]) {
  using T = typename Shared::Element;
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

// The queries of an item. Some at a time: what the compiler knows of all stays in registers.
template <int kDim, typename T>
BATON_DEVICE void LoadRows(T (&q)[kRows][kRowElements<kDim>], const Problem& args,
                           const BlockWork& work) {
  BATON_ROLLED
  for (int index = threadIdx.x % 32; index < kRows * kDim / 8; index += 4 * 32) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) LoadQuery<kDim>(q, args, work, index + 32 * i);
  }
  CommitCopies();
  WaitCopies<0>();
  __syncwarp();
}

template <typename Shared>
BATON_DEVICE void Consume(Shared& shared, const Problem& args, const Scratch& scratch,
                          uint32_t* counters, float scale) {
  constexpr int kDim = Shared::kPanels * kPanelColumns;
  const int lane = threadIdx.x;
  Ring<Shared::kStages> ring;
  Ring<kSlots> slots;
  Ring<1> posts;
  while (true) {
    Wait(shared.listed[slots.stage], slots.parity);
    const Item& item = shared.items[slots.stage];
    const BlockWork& work = item.work;
    if (work.s < 0) break;
    if (item.has_other_rows) LoadRows<kDim>(shared.q, args, work);
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
BATON_DEVICE void MergeRows(const Problem& args, const Scratch& scratch, const Post& post,
                            int warp) {
  const int lane = threadIdx.x % 32;
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
        FoldStates(scratch, token * args.num_heads + head, first, last, column, sums);
    const float factor = EndRow(args, total, token, head, work.kv_head, column == 0);
    StoreResult<T>(args, token, head, column, sums[0] * factor);
    StoreResult<T>(args, token, head, column + 1, sums[1] * factor);
  }
}

template <int kWarps, typename Shared>
BATON_DEVICE void Merge(Shared& shared, const Problem& args, const Scratch& scratch, int warp) {
  Ring<1> posts;
  while (true) {
    Wait(shared.posted, posts.parity);
    const Post post = shared.post;
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(shared.taken);
    posts.Advance();
    if (post.s < 0) return;
    MergeRows<kWarps, typename Shared::Element>(args, scratch, post, warp);
  }
}

// Tiles of codes become tiles, in the order in which warp 0 reads them.
template <typename Shared>
BATON_DEVICE void Convert(Shared& shared, const Problem& args, int warp) {
  Ring<CodeTiles::kStages> codes;
  Ring<Shared::kStages> ring;
  Ring<kSlots> slots;
  while (true) {
    Wait(shared.listed[slots.stage], slots.parity);
    const BlockWork& work = shared.items[slots.stage].work;
    if (work.s < 0) return;
    const int steps = (work.keys.end - FirstStep(work) + kStepKeys - 1) / kStepKeys;
    BATON_ROLLED
    for (int i = 0; i < 2 * steps; ++i) {
      Wait(shared.codes.full[codes.stage], codes.parity);
      Wait(shared.empty[ring.stage], ring.parity ^ 1);
      ConvertTile(shared.tiles[ring.stage], shared.codes.tiles[codes.stage], args.k_cache.dtype,
                  warp);
      Release(shared.codes.empty, codes);
      Release(shared.full, ring);
    }
    Release(shared.done, slots);
  }
}

template <int kPanels, typename T, bool kIsFp8>
BATON_DEVICE void InitMbarriers(Shared<kPanels, T, kIsFp8>& shared) {
  for (int stage = 0; stage < shared.kStages; ++stage) {
    InitMbarrier(shared.full[stage], kIsFp8 ? kConverters : 1);
    InitMbarrier(shared.empty[stage], 1);
  }
  for (int slot = 0; slot < kSlots; ++slot) {
    InitMbarrier(shared.listed[slot], 1);
    InitMbarrier(shared.done[slot], kIsFp8 ? 1 + kConverters : 1);
  }
  InitMbarrier(shared.posted, 1);
  InitMbarrier(shared.taken, kMergers<kPanels, kIsFp8>);
  if constexpr (kIsFp8) {
    for (int stage = 0; stage < CodeTiles::kStages; ++stage) {
      InitMbarrier(shared.codes.full[stage], 1);
      InitMbarrier(shared.codes.empty[stage], kConverters);
    }
  }
}

template <int kPanels, typename T, bool kIsFp8>
__global__ void __launch_bounds__(kThreads<kPanels, kIsFp8>, 2)
    DecodeSm90Kernel(const __grid_constant__ PlaneMaps k, const __grid_constant__ PlaneMaps v,
                     Problem args, Scratch scratch, uint32_t* counters, float scale) {
  constexpr int kWarps = kMergers<kPanels, kIsFp8>;
  auto& shared = SharedMemory<Shared<kPanels, T, kIsFp8>>();
  if (threadIdx.x == 0) {
    InitMbarriers(shared);
    FenceProxy();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == 0) {
    Consume(shared, args, scratch, counters, scale);
  } else if (warp == 1) {
    Produce(shared, k, v, args);
  } else if constexpr (!kIsFp8) {
    Merge<kWarps>(shared, args, scratch, warp - 2);
  } else if (warp % 2 == 0) {
    Merge<kWarps>(shared, args, scratch, warp / 2 - 1);
  } else {  // Not in the quarter of an SM where warp 0 of this block or of the other one is.
    Convert(shared, args, warp / 2 - 1);
  }
}

}  // namespace attention::decode

namespace {

using attention::Problem;
using attention::decode::PlaneMaps;

// Elements of a map are of 16 bits: of codes they are pairs.
cudaError_t MapsOf(PlaneMaps& maps, const CachePlane& cache) {
  const int64_t size = SizeOf(cache.dtype);
  const auto of = [](int64_t x) { return static_cast<uint64_t>(x); };
  const std::array sizes = {of(cache.dim * size / 2), of(cache.block_size), of(cache.num_heads),
                            of(cache.num_blocks)};
  const std::array strides = {of(attention::TokenStride(cache) * size),
                              of(attention::HeadStride(cache) * size),
                              of(cache.block_stride * size)};
  maps.box_rows = std::gcd(cache.block_size, attention::decode::kMostBoxRows);
  std::array<uint32_t, 4> box = {attention::decode::kPanelColumns, 1, 1, 1};
  const cudaError_t error = EncodeTensorMap(maps.rows, cache.data, sizes, strides, box);
  if (error != cudaSuccess) return error;
  box[1] = maps.box_rows;
  return EncodeTensorMap(maps.boxes, cache.data, sizes, strides, box);
}

// Rows of codes that tensor copies can fetch, and that are not longer than a row of a tile.
bool AreCopied(const CachePlane& cache) {
  const auto whole = [](int64_t bytes) { return bytes % 16 == 0; };
  return cache.dim <= 2 * attention::decode::kPanelColumns &&
         whole(static_cast<int64_t>(reinterpret_cast<uintptr_t>(cache.data))) &&
         whole(attention::TokenStride(cache)) && whole(attention::HeadStride(cache)) &&
         whole(cache.block_stride);
}

template <int kPanels, bool kIsFp8, typename T>
cudaError_t LaunchDecode(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  PlaneMaps k, v;
  if (const cudaError_t error = MapsOf(k, args.k_cache); error != cudaSuccess) return error;
  if (const cudaError_t error = MapsOf(v, args.v_cache); error != cudaSuccess) return error;
  int device = 0, sms = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const attention::Scratch scratch{NumPartials(args), args.k_cache.dim, args.scratch};
  return Launch(attention::decode::DecodeSm90Kernel<kPanels, T, kIsFp8>, dim3(2 * sms),
                attention::decode::kThreads<kPanels, kIsFp8>,
                sizeof(attention::decode::Shared<kPanels, T, kIsFp8>), stream, k, v, args, scratch,
                room.counters.data(), attention::ScaleOfScores(args));
}

// Columns behind the head are zeros.
template <typename T>
cudaError_t ChoosePanels(const Problem& args, const AttentionRoom& room, cudaStream_t stream) {
  const int dim = args.k_cache.dim;
  if (IsFp8(args.k_cache.dtype)) {
    return dim <= 64 ? LaunchDecode<1, true, T>(args, room, stream)
                     : LaunchDecode<2, true, T>(args, room, stream);
  }
  if (dim <= 64) return LaunchDecode<1, false, T>(args, room, stream);
  if (dim <= 128) return LaunchDecode<2, false, T>(args, room, stream);
  if (dim <= 192) return LaunchDecode<3, false, T>(args, room, stream);
  return LaunchDecode<4, false, T>(args, room, stream);
}

}  // namespace

bool IsDecodeOfSm90(const Problem& args, const AttentionRoom& room) {
  const int64_t rows = int64_t{args.max_query_len} * (args.num_heads / args.k_cache.num_heads);
  return rows <= attention::decode::kRows &&
         (args.k_cache.dtype == args.q.dtype ||
          (IsFp8(args.k_cache.dtype) && AreCopied(args.k_cache) && AreCopied(args.v_cache))) &&
         args.scratch != nullptr && args.k_cache.num_blocks > 0 &&
         args.num_seqs * args.k_cache.num_heads <= std::ssize(room.counters) && TakesSm90Forms();
}

cudaError_t DecodeAttentionSm90(const Problem& args, const AttentionRoom& room,
                                cudaStream_t stream) {
  if (args.q.dtype == DType::kBF16) return ChoosePanels<Bf16>(args, room, stream);
  return ChoosePanels<F16>(args, room, stream);
}

}  // namespace baton::cuda
