#include <algorithm>

#include "kernels/cpu/amx_gemm.h"
#include "kernels/cpu/pack_weights.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

struct Shape {
  int64_t m, n, k;
  int32_t segments;
};

class ModelledAmxTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto set = SelectKernelSet("x86_64_v4");
    if (!set.ok()) GTEST_SKIP() << set.status();
  }

  // The product in tasks of so many tiles of rows and panels, each output as its order wants it.
  // The matrix may have `before` columns before those that are multiplied, and as many behind.
  void ExpectOrder(const Shape& shape, int64_t tiles_each, int64_t panels_each,
                   int64_t before = 0) {
    const auto& [m, n, k, segments] = shape;
    const std::vector<float> a = Rounded(DType::kBF16, RandomFloats(m, m * k));
    const std::vector<float> b = Rounded(DType::kBF16, RandomFloats(n, n * k));
    const std::vector<float> bias = RandomFloats(k, n);
    const int64_t width = k + 2 * before;
    std::vector<float> wide(n * width, NAN);
    for (int64_t i = 0; i < n * k; ++i) wide[i / k * width + before + i % k] = b[i];
    const std::vector<std::byte> stored = Encode(DType::kBF16, wide);
    const PackedMatrix packed = *AllocatePanels(n, width, DType::kBF16);
    const Panels all(packed), panels = all.Columns(before, k);
    PackRows({stored.data(), DType::kBF16, n}, 0, n, 0, all);
    PackZeroRows(n, all);
    RowTiles tiles{.m = m,
                   .num_tiles = (m + BATON_KERNEL_SET::kAmxTileRows - 1) /
                                BATON_KERNEL_SET::kAmxTileRows,
                   .tile_rows = std::min(m, BATON_KERNEL_SET::kAmxTileRows),
                   .padded_k = (k + 31) / 32 * 32,
                   .bf16_group = BATON_KERNEL_SET::kAmxStepK};
    const Buffer memory = *AllocateHost(tiles.size_bytes());
    tiles.data = memory.data();
    for (int64_t t = 0; t < tiles.num_tiles; ++t) {
      BATON_KERNEL_SET::AmxPackActivations(a.data(), k, k, tiles, t);
    }
    GuardedFloats out(m * n);
    for (int64_t t = 0; t < tiles.num_tiles; t += tiles_each) {
      for (int64_t panel = 0; panel < panels.num_panels(); panel += panels_each) {
        BATON_KERNEL_SET::AmxGemm({.a = &tiles,
                                   .tile_begin = t,
                                   .tile_end = std::min(t + tiles_each, tiles.num_tiles),
                                   .weights = &panels,
                                   .panel_begin = panel,
                                   .panel_end = std::min(panel + panels_each, panels.num_panels()),
                                   .bias = bias.data(),
                                   .out = out.data(),
                                   .out_stride = n,
                                   .segments = segments});
      }
    }
    EXPECT_TRUE(out.GuardsIntact());
    for (int64_t i = 0; i < m; i += m > 100 ? 13 : 1) {
      for (int64_t j = 0; j < n; j += n > 100 ? 7 : 1) {
        const float sum = SumOfProducts("cpu-amx.2", &a[i * k], &b[j * k], k, segments);
        ASSERT_EQ(out.data()[i * n + j], sum + bias[j])
            << m << "x" << n << "x" << k << " in " << segments << ": " << i << ", " << j;
      }
    }
  }
};

// Rows of one register, of two, of several tiles and of several groups of tiles.
TEST_F(ModelledAmxTest, AddsProductsInTheOrderOfTheInstruction) {
  for (const Shape& shape : {Shape{1, 1, 1, 1},
                             {5, 40, 97, 1},
                             {17, 33, 31, 1},
                             {40, 70, 515, 1},
                             {70, 33, 64, 1},
                             {530, 40, 288, 1}}) {
    ExpectOrder(shape, 17, 9);
  }
}

TEST_F(ModelledAmxTest, MultipliesSomeColumnsOfAMatrix) {
  for (const Shape& shape : {Shape{1, 33, 32, 1}, {20, 70, 512, 1}, {70, 70, 320, 1}}) {
    ExpectOrder(shape, 17, 9, 64);
    ExpectOrder(shape, 2, 1, 64);
  }
}

// Segments of one step, of a block and of more than one; with the next segment's block right behind
// the last of this one, where a task has but a tile and a panel, and after others.
TEST_F(ModelledAmxTest, FoldsSegmentsAsATreeAndThenAddsTheBias) {
  for (const Shape& shape : {Shape{1, 33, 64, 2},
                             {16, 40, 256, 8},
                             {17, 33, 8 * 96, 8},
                             {32, 33, 2 * 320, 2},
                             {33, 70, 256, 8},
                             {65, 33, 64, 2},
                             {70, 300, 4 * 96, 4},
                             {300, 70, 512, 8},
                             {40, 40, 8 * 320, 8}}) {
    ExpectOrder(shape, 17, 9);
    if (shape.m <= 70) ExpectOrder(shape, 2, 1);
  }
}

}  // namespace
}  // namespace baton
