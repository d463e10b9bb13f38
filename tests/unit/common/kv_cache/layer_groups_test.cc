#include "common/kv_cache/layer_groups.h"

#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr KvLayerGroup kShape{.num_kv_heads = 2, .k_dim = 8, .v_dim = 8, .dtype = DType::kBF16};

// As a config.json's layer_types: every `every`-th layer sees all, the others so many tokens.
std::vector<int32_t> Pattern(int32_t num_layers, int32_t every, int32_t window) {
  std::vector<int32_t> windows;
  for (int32_t i = 1; i <= num_layers; ++i) windows.push_back(i % every == 0 ? 0 : window);
  return windows;
}

TEST(LayerGroupsTest, LayersThatSeeTheSameAreOneGroup) {
  for (const int32_t window : {0, 4096}) {
    const KvLayout layout = GroupLayers(std::vector<int32_t>(5, window), kShape, 16);
    KvLayerGroup group = kShape;
    group.num_layers = 5;
    group.window = window;
    EXPECT_EQ(layout, (KvLayout{.block_size = 16, .groups = {group}}));
  }
}

// Gemma 2 of 2b, 9b and 27b.
TEST(LayerGroupsTest, AlternatingWindowsAreTwoGroups) {
  for (const int32_t num_layers : {26, 42, 46}) {
    const KvLayout layout = GroupLayers(Pattern(num_layers, 2, 4096), kShape, 16);
    ASSERT_EQ(NumGroups(layout), 2);
    EXPECT_EQ(NumSlots(layout), num_layers / 2);
    EXPECT_EQ(layout.groups[0].window, 0);
    EXPECT_EQ(layout.groups[0].spare, 0);
    EXPECT_EQ(layout.groups[1].window, 4096);
    EXPECT_EQ(layout.groups[1].spare, kSpareTokens);
    EXPECT_EQ(PlaceOf(layout, 0), (LayerPlace{1, 0}));
    EXPECT_EQ(PlaceOf(layout, 1), (LayerPlace{0, 0}));
    EXPECT_EQ(PlaceOf(layout, num_layers - 1), (LayerPlace{0, num_layers / 2 - 1}));
  }
}

// Gemma 3 of 1b, 4b, 12b and 27b, and every other count: each layer has a slot of its own in a
// group of its kind, and of ten slots nine have a layer.
TEST(LayerGroupsTest, EachLayerHasAPlaceAndFewSlotsAreEmpty) {
  for (int32_t num_layers = 2; num_layers <= 100; ++num_layers) {
    for (const int32_t every : {2, 3, 4, 6}) {
      SCOPED_TRACE(std::to_string(num_layers) + " layers, every " + std::to_string(every));
      const std::vector<int32_t> windows = Pattern(num_layers, every, 512);
      const KvLayout layout = GroupLayers(windows, kShape, 16);
      if (num_layers < every) {
        EXPECT_EQ(NumGroups(layout), 1);
        continue;
      }
      ASSERT_EQ(NumLayers(layout), num_layers);
      std::vector<int32_t> layers_of(NumGroups(layout));
      for (int32_t layer = 0; layer < num_layers; ++layer) {
        const LayerPlace place = PlaceOf(layout, layer);
        EXPECT_EQ(layout.groups[place.group].window, windows[layer]);
        EXPECT_EQ(place.slot, layers_of[place.group]++);
        EXPECT_LT(place.slot, NumSlots(layout));
      }
      const int32_t slots = NumSlots(layout) * NumGroups(layout);
      EXPECT_LE(8 * (slots - num_layers), slots);
      EXPECT_LE(NumGroups(layout), 16);
    }
  }
}

// Of Gemma 3 1b, 4b, 12b and 27b 4, 5, 8 and 10 layers see all.
TEST(LayerGroupsTest, LayersThatSeeAllLeaveNoSlotEmpty) {
  for (const auto& [num_layers, slots, groups] :
       {std::tuple(26, 4, 7), {34, 5, 7}, {48, 8, 6}, {62, 10, 7}}) {
    const KvLayout layout = GroupLayers(Pattern(num_layers, 6, 1024), kShape, 16);
    EXPECT_EQ(NumSlots(layout), slots);
    EXPECT_EQ(NumGroups(layout), groups);
  }
}

TEST(LayerGroupsTest, AFewEmptySlotsAreBetterThanATableForEachLayer) {
  const KvLayout layout = GroupLayers(Pattern(27, 2, 1024), kShape, 16);
  EXPECT_EQ(NumSlots(layout), 14);
  EXPECT_EQ(NumGroups(layout), 2);
}

}  // namespace
}  // namespace baton
