#include <algorithm>

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

BATON_DEVICE std::byte* PlaceOf(const Places& places, int plane, int64_t num_items, int64_t item,
                                int64_t block, int64_t bytes) {
  if (places.staging != nullptr) return places.staging + (plane * num_items + item) * bytes;
  return places.planes[plane] + block * places.block_bytes;
}

// Grid: parts of a piece, items, planes.
template <typename Vector>
__global__ void __launch_bounds__(kThreads) CopyKernel(Pieces pieces, int64_t first_item) {
  const int64_t item = first_item + blockIdx.y;
  BlockRun run{0, 0, 1};
  if (pieces.pairs != nullptr) {
    run.source = pieces.pairs[item].source;
    run.destination = pieces.pairs[item].destination;
  } else if (pieces.runs != nullptr) {
    run = pieces.runs[item];
  } else {
    run.source = run.destination = pieces.blocks[item];
  }
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

}  // namespace cache_blocks

namespace {

using cache_blocks::kMaxPlanes;
using cache_blocks::Pieces;
using cache_blocks::Places;

bool IsDense(const CachePlane& plane) {
  return plane.layout != CacheLayout::kPacked && plane.head_stride == 0 && plane.token_stride == 0;
}

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

bool AreDense(const CachePlane* planes, int64_t num_planes, int64_t num_heads) {
  return std::all_of(planes, planes + num_planes, [&](const CachePlane& plane) {
    return IsDense(plane) && (num_heads == 0 || plane.layout == CacheLayout::kHnd);
  });
}

// GatherBlocksArgs and ScatterBlocksArgs differ in their direction.
template <typename Args>
cudaError_t MoveStaged(const Args& args, bool gathers, cudaStream_t stream) {
  if (args.num_planes == 0 || args.num_blocks == 0) return cudaSuccess;
  if (!AreDense(args.planes, args.num_planes, args.num_heads)) return cudaErrorInvalidValue;
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
  if (args.num_pairs == 0) return cudaSuccess;
  if (!AreDense(args.planes, args.num_planes, 0)) return cudaErrorInvalidValue;
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
  if (args.num_runs == 0) return cudaSuccess;
  if (!AreDense(args.sources, args.num_planes, args.heads.count) ||
      !AreDense(args.destinations, args.num_planes, args.heads.count)) {
    return cudaErrorInvalidValue;
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
