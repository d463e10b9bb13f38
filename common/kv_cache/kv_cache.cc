#include "common/kv_cache/kv_cache.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr int64_t kPlaneAlignment = 4096;
// Larger than any machine's memory; also keeps the sums below from overflowing.
constexpr double kMaxPoolBytes = 0x1p39;

// [2 * num_slots], and the size of all.
std::vector<KvCache::BlockPlane> PlanesOf(const KvLayout& layout, int32_t num_blocks,
                                          int64_t* bytes) {
  std::vector<KvCache::BlockPlane> planes;
  *bytes = 0;
  for (int32_t slot = 0; slot < NumSlots(layout); ++slot) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      planes.push_back({.offset = *bytes, .stride = SlotBytes(layout, slot, plane)});
      const int64_t size = planes.back().stride * num_blocks;
      *bytes += (size + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
    }
  }
  return planes;
}

}  // namespace

KvCache::KvCache(const KvLayout& layout, int32_t num_blocks, Buffer memory, bool host)
    : layout_(layout), num_blocks_(num_blocks), memory_(std::move(memory)), host_(host) {
  int64_t bytes = 0;
  planes_ = PlanesOf(layout_, num_blocks_, &bytes);
  BATON_CHECK(bytes <= memory_.size_bytes());
  for (int32_t layer = 0; layer < NumLayers(layout_); ++layer) {
    layers_.push_back({PlaceOf(layout_, layer),
                       GroupOfLayer(layout_, layer).num_kv_heads,
                       {HeadBlockBytes(layout_, layer, KvPlane::kK),
                        HeadBlockBytes(layout_, layer, KvPlane::kV)}});
  }
}

absl::StatusOr<int64_t> KvCache::PoolBytes(const KvLayout& layout, int32_t num_blocks) {
  if (num_blocks <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_blocks is %d; a KV cache needs at least 1 block", num_blocks));
  }
  const double pool_bytes = static_cast<double>(BlockBytes(layout)) * num_blocks;
  if (pool_bytes > kMaxPoolBytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d KV blocks make %.3g bytes, more than the limit of %.3g; lower "
                        "--num-blocks",
                        num_blocks, pool_bytes, kMaxPoolBytes));
  }
  int64_t bytes = 0;
  PlanesOf(layout, num_blocks, &bytes);
  return bytes;
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const KvLayout& layout,
                                                         int32_t num_blocks) {
  ASSIGN_OR_RETURN(const int64_t bytes, PoolBytes(layout, num_blocks));
  absl::StatusOr<Buffer> memory = AllocateHost(bytes);
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot allocate %d bytes for %d KV blocks; lower --num-blocks", bytes, num_blocks));
  }
  return Create(layout, num_blocks, *std::move(memory), /*host=*/true);
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const KvLayout& layout, int32_t num_blocks,
                                                         Buffer memory, bool host) {
  RETURN_IF_ERROR(PoolBytes(layout, num_blocks).status());
  return std::unique_ptr<KvCache>(new KvCache(layout, num_blocks, std::move(memory), host));
}

std::byte* KvCache::Plane(int32_t layer, KvPlane plane) const {
  return base() + planes_[PlaneOfLayer(layer, plane)].offset;
}

int64_t KvCache::BlockStride(int32_t layer, KvPlane plane) const {
  return planes_[PlaneOfLayer(layer, plane)].stride;
}

int64_t KvCache::BlockOffset(size_t plane, BlockId block) const {
  BATON_CHECK(block >= 0 && block < num_blocks_);
  return planes_[plane].offset + block * planes_[plane].stride;
}

int64_t KvCache::HeadBlockOffset(int32_t layer, KvPlane plane, BlockId block, int32_t head) const {
  const Layer& of = layers_[layer];
  BATON_CHECK(head >= 0 && head < of.num_kv_heads);
  const size_t at = PlaneOfLayer(layer, plane);
  return BlockOffset(at, block) + head * of.head_bytes[static_cast<int>(plane)];
}

std::span<std::byte> KvCache::HeadBlock(int32_t layer, KvPlane plane, BlockId block,
                                        int32_t head) const {
  BATON_CHECK(host_);
  return {base() + HeadBlockOffset(layer, plane, block, head),
          static_cast<size_t>(layers_[layer].head_bytes[static_cast<int>(plane)])};
}

}  // namespace baton
