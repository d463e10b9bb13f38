#include "kernels/cpu/cache_blocks.h"

#include <algorithm>
#include <cstring>

#include "kernels/api/cache_strides.h"

namespace baton {
namespace {

// Below this a copy is done before another thread wakes.
constexpr int64_t kInlineBytes = 1 << 17;
// What one thread copies at a time.
constexpr int64_t kPieceBytes = 1 << 18;

// A head range of one block is outer x inner rows of `bytes` each.
struct Rows {
  int64_t outer = 0;
  int64_t inner = 0;
  int64_t bytes = 0;
};

// Bytes from row to row.
struct RowSteps {
  int64_t outer = 0;
  int64_t inner = 0;
};

Rows RowsOf(const CachePlane& plane, int32_t num_heads) {
  const int64_t heads = num_heads == 0 ? plane.num_heads : num_heads;
  const int64_t row = int64_t{plane.dim} * SizeOf(plane.dtype);
  switch (plane.layout) {
    case CacheLayout::kHnd:
      return {heads, plane.block_size, row};
    case CacheLayout::kNhd:
      return {plane.block_size, heads, row};
    case CacheLayout::kPacked:
      break;  // A head of a block lies in one piece, in an order that a copy need not know.
  }
  return {heads, 1, plane.block_size * row};
}

RowSteps StepsOf(const CachePlane& plane) {
  const CacheStrides strides = StridesOf(plane, CacheRole::kKey);
  const int64_t size = SizeOf(plane.dtype);
  if (plane.layout == CacheLayout::kNhd) return {strides.token * size, strides.head * size};
  return {strides.head * size, strides.token * size};
}

RowSteps DenseSteps(const Rows& rows) { return {rows.inner * rows.bytes, rows.bytes}; }

void CopyRows(Rows rows, const std::byte* from, RowSteps from_steps, std::byte* to,
              RowSteps to_steps) {
  // Neighbours in both places are one row.
  if (rows.inner == 1 || (from_steps.inner == rows.bytes && to_steps.inner == rows.bytes)) {
    rows = {1, rows.outer, rows.inner * rows.bytes};
    from_steps = {0, from_steps.outer};
    to_steps = {0, to_steps.outer};
    if (from_steps.inner == rows.bytes && to_steps.inner == rows.bytes) {
      rows = {1, 1, rows.inner * rows.bytes};
    }
  }
  for (int64_t i = 0; i < rows.outer; ++i) {
    for (int64_t j = 0; j < rows.inner; ++j) {
      std::memcpy(to + i * to_steps.outer + j * to_steps.inner,
                  from + i * from_steps.outer + j * from_steps.inner, rows.bytes);
    }
  }
}

std::byte* AddressOf(const CachePlane& plane, int64_t block, int64_t head) {
  return plane.data + StridesOf(plane, CacheRole::kKey).At(block, head, 0) * SizeOf(plane.dtype);
}

// Calls copy(plane, item) for all planes and items of about `bytes` each.
template <typename Copy>
void ForItems(ThreadPool& pool, int64_t num_planes, int64_t num_items, int64_t bytes,
              const Copy& copy) {
  const int64_t total = num_planes * num_items;
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy(i / num_items, i % num_items);
  };
  if (total * bytes < kInlineBytes) return run(0, total);
  const int64_t each = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(bytes, 1));
  pool.ParallelFor((total + each - 1) / each, [&](int64_t task, int) {
    run(task * each, std::min(total, (task + 1) * each));
  });
}

// Whether the blocks of a plane lie one behind the other without gaps.
bool IsDense(const CachePlane& plane) {
  return IsDenseBlock(plane) &&
         plane.block_stride * SizeOf(plane.dtype) == HeadRangeBytes(plane, 0);
}

void SwapRun(const SwapBlocksArgs& args, const CachePlane& from, const CachePlane& to,
             const BlockRun& run) {
  if (args.heads.count == 0 && IsDense(from) && IsDense(to)) {
    std::memcpy(AddressOf(to, run.destination, 0), AddressOf(from, run.source, 0),
                run.count * HeadRangeBytes(from, 0));
    return;
  }
  const Rows rows = RowsOf(from, args.heads.count);
  for (int64_t b = 0; b < run.count; ++b) {
    CopyRows(rows, AddressOf(from, run.source + b, args.heads.source), StepsOf(from),
             AddressOf(to, run.destination + b, args.heads.destination), StepsOf(to));
  }
}

}  // namespace

void CopyBlocks(const CopyBlocksArgs& args, ThreadPool& pool) {
  if (args.num_planes == 0 || args.num_pairs == 0) return;
  ForItems(pool, args.num_planes, args.num_pairs, HeadRangeBytes(args.planes[0], 0),
           [&](int64_t p, int64_t i) {
             const CachePlane& plane = args.planes[p];
             CopyRows(RowsOf(plane, 0), AddressOf(plane, args.pairs[i].source, 0), StepsOf(plane),
                      AddressOf(plane, args.pairs[i].destination, 0), StepsOf(plane));
           });
}

void SwapBlocks(const SwapBlocksArgs& args, ThreadPool& pool) {
  if (args.num_planes == 0 || args.num_runs == 0) return;
  int64_t blocks = 0;
  for (int64_t i = 0; i < args.num_runs; ++i) blocks += args.runs[i].count;
  const int64_t bytes = blocks * HeadRangeBytes(args.sources[0], args.heads.count) / args.num_runs;
  ForItems(pool, args.num_planes, args.num_runs, bytes, [&](int64_t p, int64_t i) {
    SwapRun(args, args.sources[p], args.destinations[p], args.runs[i]);
  });
}

void GatherBlocks(const GatherBlocksArgs& args, ThreadPool& pool) {
  if (args.num_blocks == 0) return;
  std::byte* to = args.staging;
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& plane = args.planes[p];
    const int64_t bytes = HeadRangeBytes(plane, args.num_heads);
    const Rows rows = RowsOf(plane, args.num_heads);
    ForItems(pool, 1, args.num_blocks, bytes, [&](int64_t, int64_t i) {
      CopyRows(rows, AddressOf(plane, args.blocks[i], args.first_head), StepsOf(plane),
               to + i * bytes, DenseSteps(rows));
    });
    to += args.num_blocks * bytes;
  }
}

void ScatterBlocks(const ScatterBlocksArgs& args, ThreadPool& pool) {
  if (args.num_blocks == 0) return;
  const std::byte* from = args.staging;
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& plane = args.planes[p];
    const int64_t bytes = HeadRangeBytes(plane, args.num_heads);
    const Rows rows = RowsOf(plane, args.num_heads);
    ForItems(pool, 1, args.num_blocks, bytes, [&](int64_t, int64_t i) {
      CopyRows(rows, from + i * bytes, DenseSteps(rows),
               AddressOf(plane, args.blocks[i], args.first_head), StepsOf(plane));
    });
    from += args.num_blocks * bytes;
  }
}

}  // namespace baton
