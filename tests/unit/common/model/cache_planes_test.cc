#include "common/model/cache_planes.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(CachePlanesTest, EachPlaneStartsWhereItsFirstHeadBlockLies) {
  const KvLayout layout{.block_size = 4,
                        .groups = {{.num_layers = 3, .num_kv_heads = 2, .k_dim = 8, .v_dim = 16}}};
  const auto cache = KvCache::Create(layout, 5).value();
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const CachePlane one = PlaneOf(*cache, layer, plane);
      EXPECT_EQ(one.data, cache->HeadBlock(layer, plane, 0, 0).data());
      EXPECT_EQ(one.data + 3 * one.block_stride * SizeOf(one.dtype),
                cache->HeadBlock(layer, plane, 3, 0).data());
      EXPECT_EQ(one.dim, plane == KvPlane::kK ? 8 : 16);
      EXPECT_EQ(one.num_blocks, 5);
    }
  }
}

}  // namespace
}  // namespace baton
