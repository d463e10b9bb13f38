#include "common/kv_cache/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

KvLayout Layout() {
  return {.block_size = 4,
          .groups = {{.num_layers = 2, .num_kv_heads = 3, .k_dim = 8, .v_dim = 6}}};
}

TEST(KvCacheTest, RefusesAPoolWithoutBlocks) {
  const auto cache = KvCache::Create(Layout(), 0);
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(cache.status().message().find("num_blocks is 0"), absl::string_view::npos);
}

TEST(KvCacheTest, SaysHowMuchItCouldNotHave) {
  KvLayout layout = Layout();
  layout.groups[0].k_dim = layout.groups[0].v_dim = 1 << 20;
  const auto cache = KvCache::Create(layout, 1 << 30);
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(cache.status().message().find("--num-blocks"), absl::string_view::npos);
  EXPECT_NE(cache.status().message().find("the limit"), absl::string_view::npos);
}

// No head of a block of a plane shares a byte with another, and each keeps what was written to it.
TEST(KvCacheTest, HeadBlocksDoNotOverlap) {
  const auto cache = KvCache::Create(Layout(), 5).value();
  std::vector<std::span<std::byte>> all;
  uint8_t mark = 0;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      for (BlockId block = 0; block < 5; ++block) {
        for (int32_t head = 0; head < 3; ++head) {
          all.push_back(cache->HeadBlock(layer, plane, block, head));
          EXPECT_EQ(all.back().size(), 4u * (plane == KvPlane::kK ? 8 : 6) * 4);
          std::ranges::fill(all.back(), std::byte{++mark});
        }
      }
    }
  }
  mark = 0;
  for (const auto& bytes : all) {
    ++mark;
    EXPECT_TRUE(std::ranges::all_of(bytes, [&](std::byte b) { return b == std::byte{mark}; }));
  }
}

TEST(KvCacheTest, APlaneIsBlocksThenHeadsThenTokens) {
  const auto cache = KvCache::Create(Layout(), 5).value();
  std::byte* plane = cache->Plane(1, KvPlane::kV);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(plane) % 64, 0u);
  EXPECT_EQ(cache->HeadBlock(1, KvPlane::kV, 2, 1).data(), plane + (2 * 3 + 1) * 4 * 6 * 4);
}

TEST(KvCacheTest, ABlockOrHeadOutsideIsOurBug) {
  const auto cache = KvCache::Create(Layout(), 5).value();
  EXPECT_DEATH(cache->HeadBlock(0, KvPlane::kK, 5, 0), "check failed");
  EXPECT_DEATH(cache->HeadBlock(0, KvPlane::kK, 0, 3), "check failed");
  EXPECT_DEATH(cache->HeadBlock(0, KvPlane::kK, -1, 0), "check failed");
  EXPECT_DEATH(cache->HeadBlock(0, KvPlane::kK, 0, -1), "check failed");
}

// What a transport that copies by itself needs to know of a pool that is not the host's.
TEST(KvCacheTest, APoolOverGivenMemoryIsThatMemory) {
  const int64_t bytes = *KvCache::PoolBytes(Layout(), 5);
  Buffer memory = *AllocateHost(bytes);
  std::byte* const base = memory.data();
  const auto cache = KvCache::Create(Layout(), 5, std::move(memory), /*host=*/false).value();
  EXPECT_FALSE(cache->host());
  EXPECT_EQ(cache->base(), base);
  EXPECT_EQ(cache->Plane(0, KvPlane::kK), base);
  EXPECT_EQ(cache->HeadBlockOffset(1, KvPlane::kV, 2, 1),
            cache->Plane(1, KvPlane::kV) - base + (2 * 3 + 1) * 4 * 6 * 4);
  EXPECT_LE(cache->HeadBlockOffset(1, KvPlane::kV, 4, 2) + 4 * 6 * 4, bytes);
  EXPECT_DEATH(cache->HeadBlock(0, KvPlane::kK, 0, 0), "check failed");
  EXPECT_TRUE(KvCache::Create(Layout(), 5).value()->host());
  EXPECT_EQ(KvCache::Create(Layout(), 0, Buffer(), false).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_DEATH((void)KvCache::Create(Layout(), 5, *AllocateHost(bytes - 1), true),
               "check failed");
}

}  // namespace
}  // namespace baton
