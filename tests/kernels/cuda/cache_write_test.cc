#include "kernels/cuda/cache.h"
#include "tests/kernels/cuda/device_fixture.h"

// What it writes: tests/kernels/cache_write_test.cc, for all devices.
namespace baton::cuda {
namespace {

using CacheWriteTypesTest = DeviceTest;

TEST_F(CacheWriteTypesTest, PlanesOfTwoLayoutsOrTypesAreRefused) {
  ReshapeAndCacheArgs args;
  args.v_cache.layout = CacheLayout::kPacked;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  args = {};
  args.v_cache.dtype = DType::kBF16;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(ReshapeAndCache({}, nullptr), cudaSuccess);  // No tokens.
}

// Which no model has: K and V each of a type of its own, and a cache of a third.
TEST_F(CacheWriteTypesTest, AnyTwoHalfTypesMayMeetInACache) {
  const std::vector<float> key = Rounded(DType::kBF16, RandomFloats(1, 3 * 20));
  const std::vector<float> value = RandomFloats(2, 3 * 20);
  const DeviceFloats k(DType::kBF16, key), v(DType::kF32, value);
  const DeviceArray<int64_t> slots{std::vector<int64_t>{2, -1, 1}};
  const DeviceFloats k_cache(DType::kF16, std::vector<float>(60, 7)),
      v_cache(DType::kF16, std::vector<float>(60, 7));
  ReshapeAndCacheArgs args{.key = k,
                           .key_stride = 20,
                           .value = v,
                           .value_stride = 20,
                           .slot_mapping = slots.data(),
                           .num_tokens = 3};
  args.k_cache = {.data = static_cast<std::byte*>(k_cache.data()),
                  .dtype = DType::kF16,
                  .layout = CacheLayout::kNhd,
                  .num_blocks = 1,
                  .num_heads = 2,
                  .block_size = 3,
                  .dim = 10,
                  .block_stride = 60};
  args.v_cache = args.k_cache;
  args.v_cache.data = static_cast<std::byte*>(v_cache.data());
  ASSERT_EQ(ReshapeAndCache(args, nullptr), cudaSuccess);
  for (const auto& [cache, x] : {std::pair{&k_cache, &key}, {&v_cache, &value}}) {
    std::vector<float> expected(20, 7);
    expected.insert(expected.end(), x->begin() + 40, x->end());
    expected.insert(expected.end(), x->begin(), x->begin() + 20);
    EXPECT_EQ(cache->Read(), Rounded(DType::kF16, expected));
  }
}

}  // namespace
}  // namespace baton::cuda
