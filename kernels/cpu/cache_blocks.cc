#include "kernels/cpu/cache_blocks.h"

#include <algorithm>
#include <cstring>

namespace baton {
namespace {

// Below this a copy is done before another thread wakes.
constexpr int64_t kInlineBytes = 1 << 17;
// What one thread copies at a time.
constexpr int64_t kPieceBytes = 1 << 18;

std::byte* AddressOf(const CachePlane& plane, int64_t block, int64_t head) {
  return plane.data +
         (block * plane.block_stride + head * plane.block_size * plane.dim) * SizeOf(plane.dtype);
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
  return plane.block_stride * SizeOf(plane.dtype) == HeadRangeBytes(plane, 0);
}

void SwapRun(const SwapBlocksArgs& args, const CachePlane& from, const CachePlane& to,
             const BlockRun& run) {
  const int64_t bytes = HeadRangeBytes(from, args.heads.count);
  if (args.heads.count == 0 && IsDense(from) && IsDense(to)) {
    std::memcpy(AddressOf(to, run.destination, 0), AddressOf(from, run.source, 0),
                run.count * bytes);
    return;
  }
  for (int64_t b = 0; b < run.count; ++b) {
    std::memcpy(AddressOf(to, run.destination + b, args.heads.destination),
                AddressOf(from, run.source + b, args.heads.source), bytes);
  }
}

}  // namespace

void CopyBlocks(const CopyBlocksArgs& args, ThreadPool& pool) {
  if (args.num_planes == 0 || args.num_pairs == 0) return;
  ForItems(pool, args.num_planes, args.num_pairs, HeadRangeBytes(args.planes[0], 0),
           [&](int64_t p, int64_t i) {
             const CachePlane& plane = args.planes[p];
             std::memcpy(AddressOf(plane, args.pairs[i].destination, 0),
                         AddressOf(plane, args.pairs[i].source, 0), HeadRangeBytes(plane, 0));
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
    ForItems(pool, 1, args.num_blocks, bytes, [&](int64_t, int64_t i) {
      std::memcpy(to + i * bytes, AddressOf(plane, args.blocks[i], args.first_head), bytes);
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
    ForItems(pool, 1, args.num_blocks, bytes, [&](int64_t, int64_t i) {
      std::memcpy(AddressOf(plane, args.blocks[i], args.first_head), from + i * bytes, bytes);
    });
    from += args.num_blocks * bytes;
  }
}

}  // namespace baton
