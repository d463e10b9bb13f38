#pragma once

// Of attention_sm90.cu: how a block's threads and memory are shared out, and its warps that copy.

#include <cstdint>

#include "kernels/cuda/attention_places.h"
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/dialect_sm90.h"
#include "kernels/cuda/ring.h"

namespace baton::cuda::attention_sm90 {

using attention::BlockWork;
using attention::kStepKeys;
using attention::Problem;

// One warp copies tiles of K, another one those of V, two warpgroups multiply: 64 rows each, or
// where heads are larger the same 64 rows and half of V's columns each.
//
// | mbarrier        | arrives, in each phase        | waits                                     |
// |-----------------|-------------------------------|-------------------------------------------|
// | q_full          | K's warp, with bytes          | consumers, for its only phase             |
// | k_full, v_full  | the plane's warp, with bytes  | consumers, in each round of the ring      |
// | k_empty, v_empty| a lane of each consuming warp | the plane's warp, for the round before    |
//
// A consumer multiplies with K one tile ahead of V, and no warp waits for the other's tiles.
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

BATON_DEVICE int LiveKeys(const BlockWork& work, int first, int count) {
  return max(0, min(work.keys.end, first + count) - max(work.keys.begin, first));
}

// Where the keys of a box lie in the cache, which are some of one block.
struct Box {
  int entry;  // Of the sequence's table.
  int token;

  BATON_DEVICE static Box Of(int key, int block_size) {
    return {key / block_size, key % block_size};
  }
  // By so much; without a division, for it is done for each tile.
  BATON_DEVICE void Advance(const Box& by, int block_size) {
    entry += by.entry;
    token += by.token;
    if (token < block_size) return;
    token -= block_size;
    ++entry;
  }
};

// What a copy is told of it: zeros where none of the keys is live, of which nobody reads the entry.
struct Source {
  int32_t block;
  int token;
};

BATON_DEVICE Source SourceOf(const int32_t* table, const Box& box, bool live, int block_size) {
  if (live) return {table[box.entry], box.token};
  return {0, block_size};  // Behind the end of every block.
}

// The box, to the tile's rows from `row` on.
template <int kChunks, typename T>
BATON_DEVICE void CopyKeys(T (*tile)[kStepKeys][kTileColumns], Mbarrier& full, const TensorMap& map,
                           int kv_head, int row, const Source& from) {
  BATON_UNROLL
  for (int c = 0; c < kChunks; ++c) {
    CopyBox(&tile[c][row][0], map, full, c * kTileColumns, from.token, kv_head, from.block);
  }
}

// Of a tile that V's products would multiply by zero where no row looks, boxes that have only keys
// to look at, or none. By one thread, for few tiles are such.
template <int kChunks, typename T>
BATON_DEVICE void CopyExactly(T (*tile)[kStepKeys][kTileColumns], Mbarrier& full, const Maps& maps,
                              const int32_t* table, const BlockWork& work, int first_key,
                              int box_keys, int block_size) {
  const auto is_mixed = [&](int key, int count) {
    const int live = LiveKeys(work, key, count);
    return live > 0 && live < count;
  };
  int count = 0;
  BATON_ROLLED
  for (int row = 0; row < kStepKeys; row += count) {
    const int key = first_key + row;
    count = box_keys;
    if (row % count != 0 || is_mixed(key, count)) count = kGroupKeys;
    if (row % count != 0 || is_mixed(key, count)) count = 1;
    const TensorMap& map = count == box_keys ? maps.v : count == 1 ? maps.v_keys : maps.v_groups;
    CopyKeys<kChunks>(
        tile, full, map, work.kv_head, row,
        SourceOf(table, Box::Of(key, block_size), LiveKeys(work, key, count) > 0, block_size));
  }
}

template <typename Shape, typename T>
BATON_DEVICE void CopyQueries(Shared<Shape, T>& shared, const Maps& maps, const Tiling& tiling,
                              const BlockWork& work) {
  const int rows = tiling.queries * work.group;
  ArriveExpecting(shared.q_full, Shape::kChunks * rows * kTileColumns * sizeof(T));
  for (int c = 0; c < Shape::kChunks; ++c) {
    CopyBox(shared.q[c], maps.q, shared.q_full, c * kTileColumns, work.kv_head * work.group,
            static_cast<int>(work.sequence.first_token) + work.first_row / work.group);
  }
}

// All tiles of K, or of V, by a warp: a lane for each box of a tile, which knows where the next
// tile's lies before it waits for a stage. Of K, scores of keys that no row sees are not looked at.
template <bool kIsValue, typename Shape, typename T>
BATON_DEVICE void Produce(Shared<Shape, T>& shared, const Maps& maps, const Problem& args,
                          const BlockWork& work, int box_keys) {
  const int lane = threadIdx.x % 32, row = lane * box_keys;
  const bool has_box = row < kStepKeys;
  const int block_size = args.k_cache.block_size, first = work.keys.begin / kStepKeys * kStepKeys;
  const int32_t* const table = attention::TableOf(args, work.s);
  const Box step = Box::Of(kStepKeys, block_size);
  Box box = Box::Of(first + row, block_size);
  const auto source_at = [&](int key) {
    const bool live = has_box && LiveKeys(work, key + row, box_keys) > 0;
    return SourceOf(table, box, live, block_size);
  };
  auto& tiles = kIsValue ? shared.v : shared.k;
  auto& fulls = kIsValue ? shared.v_full : shared.k_full;
  auto& empties = kIsValue ? shared.v_empty : shared.k_empty;
  Ring<Shape::kStages> ring;
  Source next = source_at(first);
  BATON_ROLLED
  for (int key = first; key < work.keys.end; key += kStepKeys, ring.Advance()) {
    const Source from = next;
    box.Advance(step, block_size);
    next = source_at(key + kStepKeys);
    auto* const tile = tiles[ring.stage];
    Mbarrier& full = fulls[ring.stage];
    Wait(empties[ring.stage], ring.parity ^ 1);  // At first nothing is in it.
    if (lane == 0) ArriveExpecting(full, Shape::kChunks * sizeof(*tile));
    __syncwarp();
    if (kIsValue && LiveKeys(work, key, kStepKeys) < kStepKeys) {
      if (lane > 0) continue;
      CopyExactly<Shape::kChunks>(tile, full, maps, table, work, key, box_keys, block_size);
    } else if (has_box) {
      CopyKeys<Shape::kChunks>(tile, full, kIsValue ? maps.v : maps.k, work.kv_head, row, from);
    }
  }
}

}  // namespace baton::cuda::attention_sm90
