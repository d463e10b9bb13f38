#include <algorithm>

#include "kernels/api/cache_strides.h"
#include "kernels/cuda/cache.h"

namespace baton::cuda {
namespace cache_blocks {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // Vectors that a thread copies.
// Planes of one launch, given by value; a model of more layers takes several.
constexpr int kMaxPlanes = 64;

// Where the pieces of a copy begin: in the blocks of each plane, or one behind the other.
struct Places {
  std::byte* planes[kMaxPlanes];  // With the offset of the first head.
  int64_t block_bytes;            // From block to block.
  std::byte* staging;             // Not null: [num_planes][num_items][bytes] instead.
};

struct Pieces {
  Places from;
  Places to;
  int64_t num_items;       // Of `pairs`, `runs` or `blocks`, whichever is given.
  int64_t bytes;           // Of a piece.
  const BlockPair* pairs;  // The same places in both planes...
  const BlockRun* runs;    // ... or several blocks from there on
  const int32_t* blocks;   // ... or a block here, the next place in staging memory there.
};

// What item `item` of a copy moves; without pairs and runs, a block to a place of its own.
template <typename Lists>
BATON_DEVICE BlockRun RunOf(const Lists& lists, int64_t item) {
  if (lists.pairs != nullptr) return {lists.pairs[item].source, lists.pairs[item].destination, 1};
  if (lists.runs != nullptr) return lists.runs[item];
  return {lists.blocks[item], lists.blocks[item], 1};
}

BATON_DEVICE std::byte* PlaceOf(const Places& places, int plane, int64_t num_items, int64_t item,
                                int64_t block, int64_t bytes) {
  if (places.staging != nullptr) return places.staging + (plane * num_items + item) * bytes;
  return places.planes[plane] + block * places.block_bytes;
}

// Grid: parts of a piece, items, planes.
template <typename Vector>
__global__ void __launch_bounds__(kThreads) CopyKernel(Pieces pieces, int64_t first_item) {
  const int64_t item = first_item + blockIdx.y;
  const BlockRun run = RunOf(pieces, item);
  const int plane = blockIdx.z;
  const int64_t count = pieces.bytes / static_cast<int64_t>(sizeof(Vector));
  const int64_t begin = int64_t{blockIdx.x} * kThreads * kPerThread + threadIdx.x;
  for (int64_t block = 0; block < run.count; ++block) {
    const auto* from = reinterpret_cast<const Vector*>(PlaceOf(
        pieces.from, plane, pieces.num_items, item, run.source + block, pieces.bytes));
    auto* to = reinterpret_cast<Vector*>(PlaceOf(
        pieces.to, plane, pieces.num_items, item, run.destination + block, pieces.bytes));
    BATON_UNROLL
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t at = begin + i * kThreads;
      if (at < count) to[at] = from[at];
    }
  }
}

// The same of pieces that are rows with gaps: [outer][inner] of `bytes` each.
struct RowPlaces {
  std::byte* data;  // With the offset of the first head.
  int64_t block;    // Bytes from block to block, or from item to item of staging memory.
  int64_t outer;    // From row to row.
  int64_t inner;
  bool is_staging;
};

struct RowPieces {
  RowPlaces from;
  RowPlaces to;
  int64_t outer;
  int64_t inner;
  int64_t bytes;
  const BlockPair* pairs;
  const BlockRun* runs;
  const int32_t* blocks;
};

// Grid: parts of a piece, items.
template <typename Vector>
__global__ void __launch_bounds__(kThreads) CopyRowsKernel(RowPieces pieces, int64_t first_item) {
  const int64_t item = first_item + blockIdx.y;
  BlockRun run = RunOf(pieces, item);
  if (pieces.from.is_staging) run.source = item;
  if (pieces.to.is_staging) run.destination = item;
  const int64_t vectors = pieces.bytes / static_cast<int64_t>(sizeof(Vector));
  const int64_t count = pieces.outer * pieces.inner * vectors;
  const int64_t begin = int64_t{blockIdx.x} * kThreads * kPerThread + threadIdx.x;
  for (int64_t block = 0; block < run.count; ++block) {
    const std::byte* from = pieces.from.data + (run.source + block) * pieces.from.block;
    std::byte* to = pieces.to.data + (run.destination + block) * pieces.to.block;
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t index = begin + i * kThreads;
      if (index >= count) break;
      const int64_t row = index / vectors, at = index % vectors * int64_t{sizeof(Vector)};
      const int64_t outer = row / pieces.inner, inner = row % pieces.inner;
      *reinterpret_cast<Vector*>(to + outer * pieces.to.outer + inner * pieces.to.inner + at) =
          *reinterpret_cast<const Vector*>(from + outer * pieces.from.outer +
                                           inner * pieces.from.inner + at);
    }
  }
}

}  // namespace cache_blocks

namespace {

using cache_blocks::kMaxPlanes;
using cache_blocks::Pieces;
using cache_blocks::Places;
using cache_blocks::RowPieces;
using cache_blocks::RowPlaces;

int64_t BytesOfHeads(const CachePlane& plane, int64_t heads) {
  return heads * plane.block_size * plane.dim * SizeOf(plane.dtype);
}

// Planes [first, first + count). What must be aligned for a vector of n bytes is or-ed to
// `alignment`.
Places PlacesOf(const CachePlane* planes, int64_t first, int64_t count, int64_t first_head,
                uint64_t& alignment) {
  Places places = {};
  places.block_bytes = planes[first].block_stride * SizeOf(planes[first].dtype);
  alignment |= static_cast<uint64_t>(places.block_bytes);
  for (int64_t i = 0; i < count; ++i) {
    places.planes[i] = planes[first + i].data + BytesOfHeads(planes[first + i], first_head);
    alignment |= reinterpret_cast<uintptr_t>(places.planes[i]);
  }
  return places;
}

cudaError_t LaunchCopy(const Pieces& pieces, int64_t num_planes, uint64_t alignment,
                       cudaStream_t stream) {
  alignment |= static_cast<uint64_t>(pieces.bytes);
  const int vector = alignment % 16 == 0 ? 16 : alignment % 4 == 0 ? 4 : 1;
  const auto kernel = vector == 16  ? cache_blocks::CopyKernel<uint4>
                      : vector == 4 ? cache_blocks::CopyKernel<uint32_t>
                                    : cache_blocks::CopyKernel<uint8_t>;
  const unsigned parts =
      BlocksFor(pieces.bytes / vector, cache_blocks::kThreads * cache_blocks::kPerThread);
  constexpr int64_t kMaxItems = 65535;  // The grid's y.
  for (int64_t first = 0; first < pieces.num_items; first += kMaxItems) {
    const auto items = static_cast<unsigned>(std::min(kMaxItems, pieces.num_items - first));
    const cudaError_t error =
        Launch(kernel, dim3(parts, items, static_cast<unsigned>(num_planes)),
               cache_blocks::kThreads, 0, stream, pieces, first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// body(first plane, number of planes) for each launch.
template <typename Body>
cudaError_t ForPlanes(int64_t num_planes, const Body& body) {
  for (int64_t first = 0; first < num_planes; first += kMaxPlanes) {
    const cudaError_t error = body(first, std::min<int64_t>(kMaxPlanes, num_planes - first));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Whether the heads of a block of each plane lie in one piece, all of one size.
bool AreAlike(const CachePlane* planes, int64_t num_planes, int64_t num_heads) {
  return std::all_of(planes, planes + num_planes, [&](const CachePlane& plane) {
    return IsDenseBlock(plane) && (num_heads == 0 || plane.layout != CacheLayout::kNhd) &&
           plane.block_stride * SizeOf(plane.dtype) ==
               planes->block_stride * SizeOf(planes->dtype) &&
           HeadRangeBytes(plane, num_heads) == HeadRangeBytes(*planes, num_heads);
  });
}

// Rows of so many heads of a plane. In kPacked a head of a block lies in one piece, in an order
// that a copy need not know.
RowPieces RowsOf(const CachePlane& plane, int64_t heads) {
  const int64_t row = int64_t{plane.dim} * SizeOf(plane.dtype), size = plane.block_size;
  RowPieces pieces{};
  pieces.outer = plane.layout == CacheLayout::kNhd ? size : heads;
  pieces.inner = plane.layout == CacheLayout::kHnd   ? size
                 : plane.layout == CacheLayout::kNhd ? heads
                                                     : 1;
  pieces.bytes = plane.layout == CacheLayout::kPacked ? size * row : row;
  return pieces;
}

RowPlaces RowPlacesOf(const CachePlane& plane, int64_t first_head) {
  const CacheStrides strides = StridesOf(plane, CacheRole::kKey);
  const int64_t size = SizeOf(plane.dtype);
  const bool by_token = plane.layout == CacheLayout::kNhd;
  return {.data = plane.data + first_head * strides.head * size,
          .block = plane.block_stride * size,
          .outer = (by_token ? strides.token : strides.head) * size,
          .inner = (by_token ? strides.head : strides.token) * size,
          .is_staging = false};
}

// From `at` on, without gaps.
RowPlaces StagedRows(const RowPieces& rows, std::byte* at) {
  return {.data = at,
          .block = rows.outer * rows.inner * rows.bytes,
          .outer = rows.inner * rows.bytes,
          .inner = rows.bytes,
          .is_staging = true};
}

cudaError_t LaunchRows(const RowPieces& pieces, int64_t num_items, cudaStream_t stream) {
  auto alignment = static_cast<uint64_t>(pieces.bytes);
  for (const RowPlaces* places : {&pieces.from, &pieces.to}) {
    alignment |= reinterpret_cast<uintptr_t>(places->data) |
                 static_cast<uint64_t>(places->block | places->outer | places->inner);
  }
  const int vector = alignment % 16 == 0 ? 16 : alignment % 4 == 0 ? 4 : 1;
  const auto kernel = vector == 16  ? cache_blocks::CopyRowsKernel<uint4>
                      : vector == 4 ? cache_blocks::CopyRowsKernel<uint32_t>
                                    : cache_blocks::CopyRowsKernel<uint8_t>;
  const unsigned parts = BlocksFor(pieces.outer * pieces.inner * (pieces.bytes / vector),
                                   cache_blocks::kThreads * cache_blocks::kPerThread);
  constexpr int64_t kMaxItems = 65535;  // The grid's y.
  for (int64_t first = 0; first < num_items; first += kMaxItems) {
    const auto items = static_cast<unsigned>(std::min(kMaxItems, num_items - first));
    const cudaError_t error = Launch(kernel, dim3(parts, items), cache_blocks::kThreads, 0, stream,
                                     pieces, first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// MoveStaged of planes that are not alike, one by one.
template <typename Args>
cudaError_t MoveStagedRows(const Args& args, bool gathers, cudaStream_t stream) {
  auto* staging = const_cast<std::byte*>(args.staging);  // NOLINT
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& plane = args.planes[p];
    RowPieces pieces = RowsOf(plane, args.num_heads == 0 ? plane.num_heads : args.num_heads);
    const RowPlaces staged = StagedRows(pieces, staging);
    const RowPlaces in_cache = RowPlacesOf(plane, args.first_head);
    pieces.from = gathers ? in_cache : staged;
    pieces.to = gathers ? staged : in_cache;
    pieces.blocks = args.blocks;
    const cudaError_t error = LaunchRows(pieces, args.num_blocks, stream);
    if (error != cudaSuccess) return error;
    staging += args.num_blocks * staged.block;
  }
  return cudaSuccess;
}

// SwapBlocks of planes that are not alike, one by one.
cudaError_t SwapRows(const SwapBlocksArgs& args, cudaStream_t stream) {
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& from = args.sources[p];
    RowPieces pieces = RowsOf(from, args.heads.count == 0 ? from.num_heads : args.heads.count);
    pieces.from = RowPlacesOf(from, args.heads.source);
    pieces.to = RowPlacesOf(args.destinations[p], args.heads.destination);
    pieces.runs = args.runs;
    const cudaError_t error = LaunchRows(pieces, args.num_runs, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// GatherBlocksArgs and ScatterBlocksArgs differ in their direction.
template <typename Args>
cudaError_t MoveStaged(const Args& args, bool gathers, cudaStream_t stream) {
  if (args.num_planes == 0 || args.num_blocks == 0) return cudaSuccess;
  if (!AreAlike(args.planes, args.num_planes, args.num_heads)) {
    return MoveStagedRows(args, gathers, stream);
  }
  const int64_t heads = args.num_heads == 0 ? args.planes[0].num_heads : args.num_heads;
  const int64_t bytes = BytesOfHeads(args.planes[0], heads);
  return ForPlanes(args.num_planes, [&](int64_t first, int64_t count) {
    uint64_t alignment = 0;
    const Places in_cache = PlacesOf(args.planes, first, count, args.first_head, alignment);
    Places staged = {};
    staged.staging =
        const_cast<std::byte*>(args.staging) + first * args.num_blocks * bytes;  // NOLINT
    alignment |= reinterpret_cast<uintptr_t>(staged.staging);
    const Pieces pieces{.from = gathers ? in_cache : staged,
                        .to = gathers ? staged : in_cache,
                        .num_items = args.num_blocks,
                        .bytes = bytes,
                        .pairs = nullptr,
                        .runs = nullptr,
                        .blocks = args.blocks};
    return LaunchCopy(pieces, count, alignment, stream);
  });
}

}  // namespace

cudaError_t CopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream) {
  if (args.num_pairs == 0 || args.num_planes == 0) return cudaSuccess;
  if (!AreAlike(args.planes, args.num_planes, 0)) {
    for (int64_t p = 0; p < args.num_planes; ++p) {
      RowPieces pieces = RowsOf(args.planes[p], args.planes[p].num_heads);
      pieces.from = pieces.to = RowPlacesOf(args.planes[p], 0);
      pieces.pairs = args.pairs;
      const cudaError_t error = LaunchRows(pieces, args.num_pairs, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  return ForPlanes(args.num_planes, [&](int64_t first, int64_t count) {
    uint64_t alignment = 0;
    const Places places = PlacesOf(args.planes, first, count, 0, alignment);
    const Pieces pieces{.from = places,
                        .to = places,
                        .num_items = args.num_pairs,
                        .bytes = BytesOfHeads(args.planes[first], args.planes[first].num_heads),
                        .pairs = args.pairs,
                        .runs = nullptr,
                        .blocks = nullptr};
    return LaunchCopy(pieces, count, alignment, stream);
  });
}

cudaError_t SwapBlocks(const SwapBlocksArgs& args, cudaStream_t stream) {
  if (args.num_runs == 0 || args.num_planes == 0) return cudaSuccess;
  if (!AreAlike(args.sources, args.num_planes, args.heads.count) ||
      !AreAlike(args.destinations, args.num_planes, args.heads.count)) {
    return SwapRows(args, stream);
  }
  return ForPlanes(args.num_planes, [&](int64_t first, int64_t count) {
    const CachePlane& plane = args.sources[first];
    uint64_t alignment = 0;
    const Pieces pieces{
        .from = PlacesOf(args.sources, first, count, args.heads.source, alignment),
        .to = PlacesOf(args.destinations, first, count, args.heads.destination, alignment),
        .num_items = args.num_runs,
        .bytes = BytesOfHeads(plane, args.heads.count == 0 ? plane.num_heads : args.heads.count),
        .pairs = nullptr,
        .runs = args.runs,
        .blocks = nullptr};
    return LaunchCopy(pieces, count, alignment, stream);
  });
}

cudaError_t GatherBlocks(const GatherBlocksArgs& args, cudaStream_t stream) {
  return MoveStaged(args, /*gathers=*/true, stream);
}

cudaError_t ScatterBlocks(const ScatterBlocksArgs& args, cudaStream_t stream) {
  return MoveStaged(args, /*gathers=*/false, stream);
}

}  // namespace baton::cuda
