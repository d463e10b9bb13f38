#include "kernels/cuda/cache.h"
#include "tests/kernels/cuda/device_fixture.h"

// What it writes: tests/kernels/cache_write_test.cc, for all devices.
namespace baton::cuda {
namespace {

using CacheWriteRefusalTest = DeviceTest;

TEST_F(CacheWriteRefusalTest, RefusesPackedCachesAndMixedTypes) {
  ReshapeAndCacheArgs args;
  args.k_cache.layout = CacheLayout::kPacked;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  args = {};
  args.v_cache.layout = CacheLayout::kPacked;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  args = {};
  args.value.dtype = DType::kBF16;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  args = {};
  args.v_cache.dtype = DType::kBF16;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  args = {};
  args.key.dtype = args.value.dtype = DType::kF16;
  args.k_cache.dtype = args.v_cache.dtype = DType::kBF16;
  args.num_tokens = 1;
  EXPECT_EQ(ReshapeAndCache(args, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(ReshapeAndCache({}, nullptr), cudaSuccess);  // No tokens.
}

}  // namespace
}  // namespace baton::cuda
