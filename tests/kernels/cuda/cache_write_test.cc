#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/cache.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

constexpr DType kCaches[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3,
                             DType::kFp8E5M2};

// Around the greatest numbers of all types and the least of each, and what is no number.
constexpr float kSpecials[] = {NAN,     -NAN,    INFINITY, -INFINITY, 65504,  65519.9f, 65520,
                               447.9f,  448,     464,      -465,      479,    57344,    61439,
                               61440,   3.4e38f, 6e-8f,    -3e-8f,    1e-40f, 0.0018f,  0.00097f,
                               1.5e-5f, 7e-6f,   -0.0f,    1.00390625f,       1.01171875f};

// V's where K has one scale: one per head; and one where K has one per head.
std::vector<float> ScalesOfV(const std::vector<float>& scales, int32_t num_heads) {
  if (scales.empty()) return {};
  if (scales.size() > 1) return {0.7f};
  std::vector<float> of_heads;
  for (int32_t h = 0; h < num_heads; ++h) of_heads.push_back(0.6f / static_cast<float>(1 + h));
  return of_heads;
}

// A plane of the same heads that lies otherwise.
CachePlane WithMoreGaps(CachePlane plane, int64_t gap) {
  if (plane.token_stride != 0 && plane.head_stride != 0) {
    const bool by_head = plane.layout == CacheLayout::kHnd;
    (by_head ? plane.token_stride : plane.head_stride) += gap;
    (by_head ? plane.head_stride : plane.token_stride) +=
        gap * (by_head ? plane.block_size : plane.num_heads);
    plane.block_stride += gap * plane.block_size * plane.num_heads;
  }
  plane.block_stride += gap;
  return plane;
}

// Runs the same write on the CPU and on the device, over a cache of 0xff.
// Rows of V are longer by `v_more` elements.
void ExpectSameBytes(DType in, const CachePlane& shape, const std::vector<float>& scales,
                     uint64_t seed, size_t shift, size_t cache_shift = 0, int32_t v_more = 0) {
  const std::vector<int64_t> slots = {3, -1, 0, 5 * shape.block_size - 1, shape.block_size, -7};
  const int64_t tokens = std::ssize(slots), stride = int64_t{shape.num_heads} * shape.dim + 4;
  const int64_t v_stride = stride + int64_t{shape.num_heads} * v_more;
  auto key = RandomFloats(seed, tokens * stride), value = RandomFloats(seed + 1, tokens * v_stride);
  for (float& x : key) x *= 300;  // fp8 saturates for some.
  for (size_t i = 0; i < std::size(kSpecials) && i < value.size(); ++i) value[i] = kSpecials[i];
  value[4 * v_stride - 5] = FromBits(0x7f800001u);  // A NaN by the last of its bits alone.
  key = Rounded(in, key);
  value = Rounded(in, value);
  CachePlane k_plane = shape, v_plane = WithMoreGaps(shape, 16);
  std::vector<std::byte> k(5 * k_plane.block_stride * SizeOf(shape.dtype), std::byte{0xff});
  std::vector<std::byte> v(5 * v_plane.block_stride * SizeOf(shape.dtype), std::byte{0xff});
  const size_t moved = cache_shift * SizeOf(shape.dtype);
  const DeviceBytes device_k(k, moved), device_v(v, moved);
  v_plane.dim += v_more;
  k_plane.data = k.data();
  v_plane.data = v.data();
  const std::vector<float> v_scales = ScalesOfV(scales, shape.num_heads);
  k_plane.scales = scales.data();
  v_plane.scales = v_scales.data();
  k_plane.num_scales = static_cast<int32_t>(scales.size());
  v_plane.num_scales = static_cast<int32_t>(v_scales.size());
  ASSERT_TRUE(MakeTestKernels("portable")
                  ->ReshapeAndCache({key.data(), stride, value.data(), v_stride, slots.data(),
                                     tokens, k_plane, v_plane})
                  .ok());
  const DeviceFloats device_k_scales(DType::kF32, scales), device_v_scales(DType::kF32, v_scales);
  const DeviceFloats device_key(in, key, shift), device_value(in, value, shift);
  const DeviceArray<int64_t> device_slots(slots);
  k_plane.data = static_cast<std::byte*>(device_k.data());
  v_plane.data = static_cast<std::byte*>(device_v.data());
  k_plane.scales = device_k_scales.f32();
  v_plane.scales = device_v_scales.f32();
  ASSERT_EQ(ReshapeAndCache({device_key, stride, device_value, v_stride, device_slots.data(),
                             tokens, k_plane, v_plane},
                            nullptr),
            cudaSuccess);
  EXPECT_TRUE(device_k.Read() == k) << ToString(shape.dtype) << " dim " << shape.dim;
  EXPECT_TRUE(device_v.Read() == v) << ToString(shape.dtype) << " dim " << shape.dim;
}

class CacheWriteTest : public DeviceTest, public testing::WithParamInterface<DType> {};

TEST_P(CacheWriteTest, WritesTheBytesOfTheCpuAndNoOthers) {
  for (const DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
    const DType cache = GetParam();
    if (in != DType::kF32 && SizeOf(cache) == 2 && cache != in) continue;  // Refused.
    uint64_t seed = 1;
    for (const int32_t dim : {8, 20, 64, 80}) {
      for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd}) {
        const CachePlane shape{.dtype = cache,
                               .layout = layout,
                               .num_blocks = 5,
                               .num_heads = 3,
                               .block_size = 12,
                               .dim = dim,
                               .block_stride = 12 * 3 * dim + (dim % 8 == 0 ? 8 : 1)};
        emulation::SetSeed(++seed);
        ExpectSameBytes(in, shape, {}, seed, seed % 2);
        if (!IsFp8(cache)) continue;
        ExpectSameBytes(in, shape, {0.25f}, seed, 0);
        ExpectSameBytes(in, shape, {0.5f, 0.25f, 0.3f}, seed, 0);
      }
    }
  }
}

TEST_P(CacheWriteTest, FollowsTheStridesOfAPlane) {
  CachePlane shape{.dtype = GetParam(),
                   .num_blocks = 5,
                   .num_heads = 2,
                   .block_size = 8,
                   .dim = 16,
                   .block_stride = 2 * 8 * 24 + 8,
                   .head_stride = 8 * 24,
                   .token_stride = 24};
  ExpectSameBytes(DType::kF32, shape, {}, 3, 0);
  shape.layout = CacheLayout::kNhd;
  shape.head_stride = 24;
  shape.token_stride = 48;
  ExpectSameBytes(DType::kF32, shape, {}, 4, 0);
}

// Any stride, the size of heads and the plane's address may keep groups of a row from being
// vectors.
TEST_P(CacheWriteTest, EachSizeOfAPlaneMayBeOdd) {
  const CachePlane even{.dtype = GetParam(),
                        .num_blocks = 5,
                        .num_heads = 2,
                        .block_size = 8,
                        .dim = 16,
                        .block_stride = 2 * 8 * 24 + 16,
                        .head_stride = 8 * 24 + 8,
                        .token_stride = 24};
  CachePlane blocks = even, tokens = even, heads = even, dim = even;
  dim.dim = 12;
  ++blocks.block_stride;
  --tokens.token_stride;
  ++heads.head_stride;
  for (const CachePlane& shape : {even, blocks, tokens, heads, dim}) {
    for (const DType in : {DType::kF32, DType::kBF16}) {
      if (in == DType::kBF16 && GetParam() == DType::kF16) continue;  // Refused.
      ExpectSameBytes(in, shape, {}, 5, 0);
    }
  }
  ExpectSameBytes(DType::kF32, even, {}, 6, 0, 1);
  // V alone needs more blocks of threads than one.
  const CachePlane many{.dtype = GetParam(),
                        .num_blocks = 5,
                        .num_heads = 16,
                        .block_size = 8,
                        .dim = 8,
                        .block_stride = 8 * 16 * 40};
  ExpectSameBytes(DType::kF32, many, {}, 7, 0, 0, 32);
  ExpectSameBytes(DType::kF32, even, {}, 8, 0, 0, -8);
}

INSTANTIATE_TEST_SUITE_P(Types, CacheWriteTest, testing::ValuesIn(kCaches),
                         [](const auto& info) { return std::string(ToString(info.param)); });

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
