#include "kernels/api/kv_cache_shape.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/cache_layouts.h"

namespace baton {
namespace {

using Dims = std::vector<int64_t>;

// OPT-125m: 12 heads of 64; OPT-30b: 56 of 128.
constexpr KvCacheShapeArgs kOpt125m{.layout = CacheLayout::kPacked,
                                    .dtype = DType::kF16,
                                    .num_blocks = 7281,
                                    .block_size = 16,
                                    .num_kv_heads = 12,
                                    .head_size = 64};
constexpr KvCacheShapeArgs kOpt30b{.layout = CacheLayout::kPacked,
                                   .dtype = DType::kF16,
                                   .num_blocks = 1000,
                                   .block_size = 16,
                                   .num_kv_heads = 56,
                                   .head_size = 128};

TEST(KvCacheShapeTest, OptModelsHaveTheDocumentedShapes) {
  EXPECT_EQ(*KvCacheShape(kOpt125m), (Dims{2, 7281, 12288}));
  EXPECT_EQ(*KvCacheShape(kOpt30b), (Dims{2, 1000, 114688}));
  std::byte memory[1];
  const int64_t bytes = int64_t{2} * 1000 * 114688 * 2;
  const auto split = SplitKvCache(kOpt30b, memory, bytes);  // Nothing is looked at.
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->k_shape, (Dims{1000, 56, 16, 16, 8}));
  EXPECT_EQ(split->v_shape, (Dims{1000, 56, 128, 16}));
  EXPECT_EQ(split->k_cache.data, memory);
  EXPECT_EQ(split->v_cache.data - memory, 1000 * 114688 * 2);
  EXPECT_EQ(split->k_cache.block_stride, 114688);
}

TEST(KvCacheShapeTest, OtherLayoutsKeepTheirDimensions) {
  KvCacheShapeArgs args{.dtype = DType::kBF16,
                        .num_blocks = 9,
                        .block_size = 32,
                        .num_kv_heads = 3,
                        .head_size = 5};
  EXPECT_EQ(*KvCacheShape(args), (Dims{2, 9, 3, 32, 5}));
  args.layout = CacheLayout::kNhd;
  EXPECT_EQ(*KvCacheShape(args), (Dims{2, 9, 32, 3, 5}));
  std::byte memory[1];
  const auto split = SplitKvCache(args, memory, 2 * 9 * 32 * 3 * 5 * 2);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->k_shape, (Dims{9, 32, 3, 5}));
  EXPECT_EQ(split->v_shape, split->k_shape);
}

TEST(KvCacheShapeTest, TheGroupOfPackedKeysFillsSixteenBytes) {
  KvCacheShapeArgs args = kOpt125m;
  for (const auto& [dtype, x] : {std::pair{DType::kF32, 4}, {DType::kF16, 8}, {DType::kBF16, 8},
                                 {DType::kFp8E4M3, 16}, {DType::kFp8E5M2, 16}}) {
    args.dtype = dtype;
    std::byte memory[1];
    const auto split = SplitKvCache(args, memory, INT64_MAX);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->k_shape, (Dims{7281, 12, 64 / x, 16, x}));
  }
}

// Each plane of the split holds what the operators write there, and nothing of the other.
TEST(KvCacheShapeTest, OperatorsWriteWhereTheSplitSays) {
  auto kernels = MakeTestKernels("auto");
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    const KvCacheShapeArgs args{
        .layout = layout, .num_blocks = 3, .block_size = 4, .num_kv_heads = 2, .head_size = 8};
    std::vector<float> tensor(2 * 3 * 4 * 2 * 8 + 1, -1.0f);
    const auto split = SplitKvCache(args, reinterpret_cast<std::byte*>(tensor.data()),
                                    std::ssize(tensor) * 4);
    ASSERT_TRUE(split.ok()) << split.status();
    const std::vector<float> key = RandomFloats(1, 16), value = RandomFloats(2, 16);
    const int64_t slot = 2 * 4 + 3;
    ASSERT_TRUE(kernels
                    ->ReshapeAndCache({.key = key.data(),
                                       .key_stride = 16,
                                       .value = value.data(),
                                       .value_stride = 16,
                                       .slot_mapping = &slot,
                                       .num_tokens = 1,
                                       .k_cache = split->k_cache,
                                       .v_cache = split->v_cache})
                    .ok());
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 8; ++d) {
        EXPECT_EQ(tensor[2 * 64 + IndexInBlock(layout, true, 2, 4, 8, 4, h, 3, d)], key[h * 8 + d]);
        EXPECT_EQ(tensor[192 + 2 * 64 + IndexInBlock(layout, false, 2, 4, 8, 4, h, 3, d)],
                  value[h * 8 + d]);
      }
    }
    EXPECT_EQ(std::count(tensor.begin(), tensor.end(), -1.0f), std::ssize(tensor) - 32);
  }
}

TEST(KvCacheShapeTest, RefusalsNameTheFieldAndWhatIsAllowed) {
  const auto refused = [](auto change, const std::string& message) {
    KvCacheShapeArgs args = kOpt125m;
    change(args);
    const absl::Status status = KvCacheShape(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    std::byte memory[1];
    EXPECT_EQ(SplitKvCache(args, memory, INT64_MAX).status(), status);
  };
  refused([](auto& a) { a.num_blocks = -1; }, "num_blocks = -1: must be in [0, ");
  refused([](auto& a) { a.block_size = 0; }, "block_size = 0: must be in [1, 1048576]");
  refused([](auto& a) { a.num_kv_heads = 0; }, "num_kv_heads = 0");
  refused([](auto& a) { a.head_size = -8; }, "head_size = -8");
  refused([](auto& a) { a.head_size = 60; }, "head_size = 60: must be a multiple, in PACKED, of 8");
  refused([](auto& a) { a.dtype = static_cast<DType>(77); }, "dtype = 77");
  refused([](auto& a) { a.layout = static_cast<CacheLayout>(9); }, "layout = 9");
  refused(
      [](auto& a) {
        a.num_blocks = INT32_MAX;
        a.block_size = 1 << 20;
        a.num_kv_heads = a.head_size = 1 << 16;
      },
      "num_blocks = 2147483647: must be at most ");
  std::byte memory[1];
  const int64_t bytes = int64_t{2} * 7281 * 12288 * 2;
  EXPECT_EQ(SplitKvCache(kOpt125m, memory, bytes - 1).status().message(),
            "num_bytes = 357875711: must be at least 357875712");
  EXPECT_EQ(SplitKvCache(kOpt125m, nullptr, bytes).status().message(),
            "data = null: must point to data");
}

}  // namespace
}  // namespace baton
