#include "common/kv_cache/kv_cache.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton {
namespace {

constexpr int64_t kPlaneAlignment = 4096;
// Attention reads all of a sequence's blocks: fewer and larger pages cost fewer walks.
constexpr int64_t kHugePage = int64_t{2} << 20;
// Larger than any machine's memory; also keeps the sums below from overflowing.
constexpr double kMaxPoolBytes = 0x1p39;

}  // namespace

void KvCache::Free::operator()(std::byte* p) const { std::free(p); }

KvCache::KvCache(const KvLayout& layout, int32_t num_blocks)
    : layout_(layout), num_blocks_(num_blocks) {}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const KvLayout& layout,
                                                         int32_t num_blocks) {
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
  std::unique_ptr<KvCache> cache(new KvCache(layout, num_blocks));
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      cache->plane_offset_.push_back(bytes);
      int64_t size = HeadBlockBytes(layout, layer, plane) *
                     GroupOfLayer(layout, layer).num_kv_heads * num_blocks;
      bytes += (size + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
    }
  }
  const int64_t alignment = bytes < kHugePage ? kPlaneAlignment : kHugePage;
  const int64_t rounded = (std::max(bytes, int64_t{1}) + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot allocate %d bytes for %d KV blocks; lower --num-blocks", bytes, num_blocks));
  }
#if defined(__linux__)
  if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  cache->memory_.reset(static_cast<std::byte*>(memory));
  return cache;
}

std::byte* KvCache::Plane(int32_t layer, KvPlane plane) const {
  return memory_.get() + plane_offset_[2 * layer + static_cast<int>(plane)];
}

std::span<std::byte> KvCache::HeadBlock(int32_t layer, KvPlane plane, BlockId block,
                                        int32_t head) const {
  BATON_CHECK(block >= 0 && block < num_blocks_);
  const int64_t size = HeadBlockBytes(layout_, layer, plane);
  const int64_t heads = GroupOfLayer(layout_, layer).num_kv_heads;
  BATON_CHECK(head >= 0 && head < heads);
  return {Plane(layer, plane) + (block * heads + head) * size, static_cast<size_t>(size)};
}

}  // namespace baton
