#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

// A pool as that of Llama 8B: of each layer K and V, in blocks of 16 tokens.
struct Layers {
  int64_t planes;
  int32_t heads;
  int32_t dim;
  int64_t blocks;  // Of the pool.
  int64_t moved;   // Of them, in one call.
};
constexpr Layers kLayers = {64, 8, 128, 256, 64};
constexpr Layers kQuickLayers = {4, 2, 16, 8, 4};

class CopyBench {
 public:
  static absl::StatusOr<CopyBench> Create(GpuBench* bench) {
    CopyBench copies(bench);
    ASSIGN_OR_RETURN(copies.pool_, bench->RandomMemory(copies.PoolBytes(), DType::kBF16));
    ASSIGN_OR_RETURN(copies.staging_,
                     bench->device().Allocate(copies.MovedBytes(), MemoryKind::kDevice));
    ASSIGN_OR_RETURN(copies.host_,
                     bench->device().Allocate(copies.MovedBytes(), MemoryKind::kPinned));
    RETURN_IF_ERROR(copies.ChooseBlocks());
    copies.device_planes_ = copies.Planes(copies.pool_, copies.layers_.blocks);
    copies.host_planes_ = copies.Planes(copies.host_, copies.layers_.moved);
    return copies;
  }

  absl::Status Measure() {
    RETURN_IF_ERROR(MeasureStaging());
    RETURN_IF_ERROR(MeasureSwaps());
    RETURN_IF_ERROR(MeasureCopies());
    return MeasurePieces();
  }

 private:
  explicit CopyBench(GpuBench* bench)
      : bench_(*bench), layers_(bench->quick() ? kQuickLayers : kLayers) {}

  int64_t BlockElements() const { return int64_t{layers_.heads} * kBlockTokens * layers_.dim; }
  int64_t PoolBytes() const { return layers_.planes * layers_.blocks * BlockElements() * 2; }
  int64_t MovedBytes() const { return layers_.planes * layers_.moved * BlockElements() * 2; }

  std::vector<CachePlane> Planes(const Buffer& memory, int64_t blocks) const {
    std::vector<CachePlane> planes;
    for (int64_t p = 0; p < layers_.planes; ++p) {
      planes.push_back({.data = memory.data() + p * blocks * BlockElements() * 2,
                        .dtype = DType::kBF16,
                        .num_blocks = blocks,
                        .num_heads = layers_.heads,
                        .block_size = kBlockTokens,
                        .dim = layers_.dim,
                        .block_stride = BlockElements()});
    }
    return planes;
  }

  // Half of the pool's blocks in any order; the other half is what copies within it go to.
  absl::Status ChooseBlocks() {
    std::vector<int32_t> order(layers_.blocks);
    std::iota(order.begin(), order.end(), 0);
    Random random(1);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
    std::vector<BlockPair> pairs;
    std::vector<BlockRun> out, in;
    for (int64_t i = 0; i < layers_.moved; ++i) {
      pairs.push_back({order[i], order[layers_.moved + i]});
      out.push_back({.source = order[i], .destination = i});
      in.push_back({.source = i, .destination = order[i]});
    }
    order.resize(layers_.moved);
    ASSIGN_OR_RETURN(blocks_, bench_.Upload(order));
    ASSIGN_OR_RETURN(pairs_, bench_.Upload(pairs));
    ASSIGN_OR_RETURN(out_, bench_.Upload(out));
    ASSIGN_OR_RETURN(in_, bench_.Upload(in));
    return absl::OkStatus();
  }

  GpuWork Within(const char* name) const {
    return {
        .name = absl::StrCat(name, " ", layers_.moved, " blocks of ", layers_.planes, " planes"),
        .bytes = 2.0 * static_cast<double>(MovedBytes()),
        .family = "gather"};
  }
  GpuWork Across(const char* name, bool to_device) const {
    return {
        .name = absl::StrCat(name, " ", layers_.moved, " blocks of ", layers_.planes, " planes"),
        .bytes = static_cast<double>(MovedBytes()),
        .family = "pinned",
        .bytes_roof = to_device ? bench_.roofs().to_device : bench_.roofs().from_device,
        .roof_name = to_device ? "pinned to device" : "device to pinned"};
  }

  GatherBlocksArgs Gather(const Buffer& to) const {
    return {.planes = device_planes_.data(),
            .num_planes = layers_.planes,
            .blocks = blocks_.array<int32_t>(),
            .num_blocks = layers_.moved,
            .staging = to.data(),
            .staging_bytes = MovedBytes()};
  }
  ScatterBlocksArgs Scatter(const Buffer& from) const {
    return {.planes = device_planes_.data(),
            .num_planes = layers_.planes,
            .blocks = blocks_.array<int32_t>(),
            .num_blocks = layers_.moved,
            .staging = from.data(),
            .staging_bytes = MovedBytes()};
  }

  // What a handoff does: from the pool to a slot beside it, from there to pinned memory; and back.
  absl::Status MeasureStaging() {
    OperatorLibrary& library = bench_.library();
    RETURN_IF_ERROR(bench_.Measure(
        Within("gather"), [&](int64_t) { return library.GatherBlocks(Gather(staging_)); }));
    RETURN_IF_ERROR(bench_.Measure(
        Within("scatter"), [&](int64_t) { return library.ScatterBlocks(Scatter(staging_)); }));
    RETURN_IF_ERROR(MeasurePiece("gather + pinned", true));
    return MeasurePiece("pinned + scatter", false);
  }
  absl::Status MeasurePiece(const char* name, bool leaves) {
    ASSIGN_OR_RETURN(const Buffer list,
                     bench_.device().Allocate(sizeof(CopyPiece), MemoryKind::kPinned));
    auto* const piece = list.array<CopyPiece>();
    *piece = leaves ? CopyPiece{staging_.data(), host_.data(), MovedBytes()}
                    : CopyPiece{host_.data(), staging_.data(), MovedBytes()};
    return bench_.Measure(Across(name, !leaves), [&](int64_t) -> absl::Status {
      if (leaves) RETURN_IF_ERROR(bench_.library().GatherBlocks(Gather(staging_)));
      RETURN_IF_ERROR(bench_.device().CopyPieces(Lane::kCompute, {piece, 1}));
      if (leaves) return absl::OkStatus();
      return bench_.library().ScatterBlocks(Scatter(staging_));
    });
  }

  absl::Status MeasureSwaps() {
    const SwapBlocksArgs out{.sources = device_planes_.data(),
                             .destinations = host_planes_.data(),
                             .num_planes = layers_.planes,
                             .runs = out_.array<BlockRun>(),
                             .num_runs = layers_.moved};
    const SwapBlocksArgs in{.sources = host_planes_.data(),
                            .destinations = device_planes_.data(),
                            .num_planes = layers_.planes,
                            .runs = in_.array<BlockRun>(),
                            .num_runs = layers_.moved};
    RETURN_IF_ERROR(bench_.Measure(Across("swap out", false),
                                   [&](int64_t) { return bench_.library().SwapBlocks(out); }));
    return bench_.Measure(Across("swap in", true),
                          [&](int64_t) { return bench_.library().SwapBlocks(in); });
  }

  absl::Status MeasureCopies() {
    return bench_.Measure(Within("copy_blocks"), [&](int64_t) {
      return bench_.library().CopyBlocks({.planes = device_planes_.data(),
                                          .num_planes = layers_.planes,
                                          .pairs = pairs_.array<BlockPair>(),
                                          .num_pairs = layers_.moved});
    });
  }

  // Of sizes from a head's part of a block to a large message.
  absl::Status MeasurePieces() {
    for (int64_t bytes = 4096; bytes <= MovedBytes(); bytes *= 16) {
      const int64_t count = std::min<int64_t>(4096, MovedBytes() / bytes);
      ASSIGN_OR_RETURN(
          const Buffer list,
          bench_.device().Allocate(count * int64_t{sizeof(CopyPiece)}, MemoryKind::kPinned));
      auto* const pieces = list.array<CopyPiece>();
      for (int64_t i = 0; i < count; ++i) {
        pieces[i] = {pool_.data() + i * bytes, staging_.data() + i * bytes, bytes};
      }
      const GpuWork work{.name = absl::StrCat("copy_pieces ", count, " x ", bytes, " bytes"),
                         .bytes = 2.0 * static_cast<double>(count * bytes)};
      RETURN_IF_ERROR(bench_.Measure(work, [&](int64_t) {
        return bench_.device().CopyPieces(Lane::kCompute, {pieces, static_cast<size_t>(count)});
      }));
    }
    return absl::OkStatus();
  }

  GpuBench& bench_;
  const Layers layers_;
  Buffer pool_, staging_, host_, blocks_, pairs_, out_, in_;
  std::vector<CachePlane> device_planes_, host_planes_;
};

}  // namespace

absl::Status MeasureCopies(GpuBench& bench) {
  ASSIGN_OR_RETURN(CopyBench copies, CopyBench::Create(&bench));
  return copies.Measure();
}

}  // namespace baton::bench
