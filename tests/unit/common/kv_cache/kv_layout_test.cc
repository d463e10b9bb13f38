#include "common/kv_cache/kv_layout.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

KvLayout TwoGroups() {
  return {
      .block_size = 16,
      .groups = {
          {.num_layers = 2, .num_kv_heads = 4, .k_dim = 8, .v_dim = 8},
          {.num_layers = 1, .num_kv_heads = 1, .k_dim = 32, .v_dim = 16, .dtype = DType::kBF16}}};
}

TEST(KvLayoutTest, LayersAreNumberedThroughTheGroups) {
  const KvLayout layout = TwoGroups();
  EXPECT_EQ(NumLayers(layout), 3);
  EXPECT_EQ(PlaceOf(layout, 0), (LayerPlace{0, 0}));
  EXPECT_EQ(PlaceOf(layout, 1), (LayerPlace{0, 1}));
  EXPECT_EQ(PlaceOf(layout, 2), (LayerPlace{1, 0}));
  EXPECT_EQ(GroupOfLayer(layout, 2), layout.groups[1]);
}

TEST(KvLayoutTest, LayersOfAGroupNeedNotBeNeighbours) {
  KvLayout layout = TwoGroups();
  layout.group_of_layer = {0, 1, 0};
  EXPECT_EQ(PlaceOf(layout, 0), (LayerPlace{0, 0}));
  EXPECT_EQ(PlaceOf(layout, 1), (LayerPlace{1, 0}));
  EXPECT_EQ(PlaceOf(layout, 2), (LayerPlace{0, 1}));
}

TEST(KvLayoutTest, ALayerBeyondTheLastIsOurBug) {
  const KvLayout layout = TwoGroups();
  EXPECT_DEATH(GroupOfLayer(layout, 3), "layer is not in the layout");
}

TEST(KvLayoutTest, BytesFollowDimensionsAndDtype) {
  const KvLayout layout = TwoGroups();
  EXPECT_EQ(HeadBlockBytes(layout, 0, KvPlane::kK), 16 * 8 * 4);
  EXPECT_EQ(HeadBlockBytes(layout, 2, KvPlane::kK), 16 * 32 * 2);
  EXPECT_EQ(HeadBlockBytes(layout, 2, KvPlane::kV), 16 * 16 * 2);
  // The second group has one layer, which takes less of a block than the first slot has.
  EXPECT_EQ(NumSlots(layout), 2);
  EXPECT_EQ(SlotBytes(layout, 0, KvPlane::kK), 4 * 8 * 16 * 4);
  EXPECT_EQ(BlockBytes(layout), 2 * 4 * (8 + 8) * 16 * 4);
}

TEST(KvLayoutTest, BehindAWindowIsWhatNoLaterQuerySees) {
  for (int32_t window = 2; window < 20; ++window) {
    for (int32_t num_tokens = 1; num_tokens < 60; ++num_tokens) {
      const int32_t behind = TokensBehindWindow(window, num_tokens);
      // The next query, at position num_tokens, sees (num_tokens - window, num_tokens].
      if (behind > 0) {
        EXPECT_LE(behind - 1, num_tokens - window);
      }
      EXPECT_GT(behind, num_tokens - window);
    }
  }
  EXPECT_EQ(TokensBehindWindow(0, 1000), 0);
}

TEST(KvLayoutTest, TheLastTokenIsNeverBehindTheWindow) {
  EXPECT_EQ(TokensBehindWindow(1, 5), 4);
  EXPECT_EQ(TokensBehindWindow(1, 0), 0);
}

TEST(KvLayoutTest, OfALayoutIsLeftOutWhatEachGroupLeavesOut) {
  KvLayout layout = TwoGroups();
  EXPECT_EQ(TokensLeftOut(layout, 100), 0);
  EXPECT_FALSE(AnyLeavesTokensOut(layout, 100));
  layout.groups[1].window = 10;
  EXPECT_EQ(TokensLeftOut(layout, 100), 0);
  EXPECT_EQ(TokensLeftOut(layout.groups[1], 100), 91);
  EXPECT_TRUE(AnyLeavesTokensOut(layout, 100));
  EXPECT_FALSE(AnyLeavesTokensOut(layout, 9));
  layout.groups[1].spare = 60;
  EXPECT_EQ(TokensLeftOut(layout.groups[1], 100), 31);
  EXPECT_EQ(TokensLeftOut(layout.groups[1], 50), 0);
  layout.groups[0].window = 30;
  EXPECT_EQ(TokensLeftOut(layout, 100), 31);
}

// A recorded value: workers of two releases pair by it.
TEST(KvLayoutTest, TheDigestOfOneGroupIsThatOfEarlierReleases) {
  KvLayout layout = TwoGroups();
  layout.groups.pop_back();
  EXPECT_EQ(LayoutDigest(layout), 10575551068694213408u);
}

TEST(KvLayoutTest, DigestIgnoresTheBlockSizeOnly) {
  const KvLayout layout = TwoGroups();
  KvLayout other = layout;
  other.block_size = 32;
  EXPECT_EQ(LayoutDigest(other), LayoutDigest(layout));
  for (int field = 0; field < 8; ++field) {
    KvLayout changed = layout;
    KvLayerGroup& group = changed.groups[1];
    if (field == 0) group.num_layers = 2;
    if (field == 1) group.num_kv_heads = 2;
    if (field == 2) group.k_dim = 16;
    if (field == 3) group.v_dim = 32;
    if (field == 4) group.dtype = DType::kF16;
    if (field == 5) group.window = 1;
    if (field == 6) group.spare = 1;
    if (field == 7) changed.group_of_layer = {0, 1, 0};
    EXPECT_NE(LayoutDigest(changed), LayoutDigest(layout)) << "field " << field;
  }
  KvLayout shorter = layout;
  shorter.groups.pop_back();
  EXPECT_NE(LayoutDigest(shorter), LayoutDigest(layout));
}

}  // namespace
}  // namespace baton
