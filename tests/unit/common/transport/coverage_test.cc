#include "common/transport/coverage.h"

#include <set>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

KvLayout Layout(int32_t v_dim = 8) {
  return {.block_size = 16,
          .groups = {{.num_layers = 2, .num_kv_heads = 3, .k_dim = 8, .v_dim = v_dim}}};
}

TEST(CoverageTest, AgreesWithASetOfCells) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    Coverage coverage(Layout(), 10, 40, 4);
    std::set<std::tuple<int, int, int, int>> cells;
    for (int i = 0; i < 60; ++i) {
      FrameRange r{.layer = static_cast<int32_t>(random.Below(2)),
                   .plane = random.Below(2) == 0 ? KvPlane::kK : KvPlane::kV};
      r.first_token = 10 + static_cast<int32_t>(random.Below(30));
      r.num_tokens = 1 + static_cast<int32_t>(random.Below(40 - r.first_token));
      r.first_head = 4 + static_cast<int32_t>(random.Below(3));
      r.num_heads = 1 + static_cast<int32_t>(random.Below(7 - r.first_head));
      int present = 0;
      for (int h = r.first_head; h < r.first_head + r.num_heads; ++h) {
        for (int t = r.first_token; t < r.first_token + r.num_tokens; ++t) {
          present += cells.contains({r.layer, static_cast<int>(r.plane), h, t});
        }
      }
      const Coverage::Overlap expected = present == 0 ? Coverage::Overlap::kNone
                                         : present == r.num_heads * r.num_tokens
                                             ? Coverage::Overlap::kWhole
                                             : Coverage::Overlap::kPartial;
      ASSERT_EQ(coverage.Check(r), expected);
      coverage.Add(r);
      for (int h = r.first_head; h < r.first_head + r.num_heads; ++h) {
        for (int t = r.first_token; t < r.first_token + r.num_tokens; ++t) {
          cells.insert({r.layer, static_cast<int>(r.plane), h, t});
        }
      }
      ASSERT_EQ(coverage.Complete(), cells.size() == 2u * 2 * 3 * 30);
    }
  }
}

TEST(CoverageTest, APlaneWithoutBytesIsNotNeeded) {
  Coverage coverage(Layout(/*v_dim=*/0), 0, 5, 0);
  for (int32_t layer : {0, 1}) coverage.Add({layer, KvPlane::kK, 0, 5, 0, 3});
  EXPECT_TRUE(coverage.Complete());
}

TEST(CoverageTest, OfALayerComesWhatItsWindowDoesNotLeaveOut) {
  KvLayout layout = Layout();
  layout.groups.push_back(layout.groups[0]);
  layout.groups[1].window = 4;
  layout.groups[1].spare = 2;
  layout.group_of_layer = {0, 1, 0, 1};
  Coverage coverage(layout, 3, 20, 0);
  for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
    for (const int32_t layer : {0, 2}) coverage.Add({layer, plane, 3, 17, 0, 3});
    coverage.Add({1, plane, 15, 5, 0, 3});
    coverage.Add({3, plane, 15, 4, 0, 3});
  }
  EXPECT_FALSE(coverage.Complete());
  coverage.Add({3, KvPlane::kK, 19, 1, 0, 3});
  coverage.Add({3, KvPlane::kV, 19, 1, 0, 3});
  EXPECT_TRUE(coverage.Complete());
}

TEST(CoverageTest, NothingToComeIsComplete) { EXPECT_TRUE(Coverage(Layout(), 7, 7, 0).Complete()); }

}  // namespace
}  // namespace baton
