#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/cache.h"
#include "kernels/cuda/elementwise.h"
#include "tests/kernels/cuda/device_fixture.h"

// Against the operators that it stands for, byte for byte.
namespace baton::cuda {
namespace {

struct HeadSizes {
  int32_t dim = 16;
  int64_t rotary_dim = 16;
  int64_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t v_more = 0;  // By which V's heads are longer.
  CacheLayout layout = CacheLayout::kHnd;
  int num_scales = 0;
};

// A layer's rows of keys, values and queries, and its planes, on the device.
class LayerRows {
 public:
  static constexpr int32_t kBlockSize = 8;
  static constexpr int64_t kTokens = 6, kBlocks = 3, kGap = 8;

  LayerRows(const HeadSizes& sizes, DType type, DType cache)
      : sizes_(sizes),
        rows_(type, Values(kTokens * stride(), 1)),
        k_(Plane(cache)),
        v_(k_),
        k_bytes_(Canaries(k_)),
        v_bytes_(Canaries(v_)),
        cos_(DType::kF32, Angles(2)),
        sin_(DType::kF32, Angles(3)),
        scales_(std::vector<float>{0.5f, 0.3f, 0.25f, 0.7f}) {
    v_.dim += sizes.v_more;
    k_.data = k_bytes_.data();
    v_.data = v_bytes_.data();
    k_.scales = v_.scales = scales_.data();
    k_.num_scales = sizes.num_scales;
    v_.num_scales = sizes.num_scales > 0 ? 1 : 0;
  }

  RopeAndCacheArgs Args() const {
    const Floats rows = rows_;
    const int64_t value = int64_t{sizes_.kv_heads} * sizes_.dim;
    return {.q = rows.At(value + v_width()),
            .q_stride = stride(),
            .num_heads = sizes_.q_heads,
            .key = rows,
            .key_stride = stride(),
            .value = rows.At(value),
            .value_stride = stride(),
            .num_tokens = kTokens,
            .rotary_dim = sizes_.rotary_dim,
            .cos = cos_.f32(),
            .sin = sin_.f32(),
            .slot_mapping = slots_.data(),
            .k_cache = k_,
            .v_cache = v_};
  }

  std::vector<std::byte> K() const { return k_bytes_.Read(); }
  std::vector<std::byte> V() const { return v_bytes_.Read(); }
  std::vector<float> Rows() const { return rows_.Read(); }

  // Without the keys, which one of the two leaves as they were.
  static std::vector<float> BehindKeys(const HeadSizes& sizes, const std::vector<float>& rows) {
    const int64_t stride = std::ssize(rows) / kTokens;
    std::vector<float> out;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto row = rows.begin() + t * stride;
      out.insert(out.end(), row + int64_t{sizes.kv_heads} * sizes.dim, row + stride);
    }
    return out;
  }

 private:
  int64_t v_width() const { return int64_t{sizes_.kv_heads} * (sizes_.dim + sizes_.v_more); }
  int64_t stride() const {
    return int64_t{sizes_.kv_heads} * sizes_.dim + v_width() + sizes_.q_heads * sizes_.dim + kGap;
  }
  static std::vector<float> Values(int64_t n, uint64_t seed) {
    std::vector<float> values = RandomFloats(seed, n);
    for (float& x : values) x *= 300;  // fp8 saturates for some.
    values[1] = NAN;
    values[2] = INFINITY;
    return values;
  }
  std::vector<float> Angles(uint64_t seed) const {
    return RandomFloats(seed, kTokens * sizes_.rotary_dim / 2);
  }
  CachePlane Plane(DType cache) const {
    const int64_t width = std::max<int64_t>(sizes_.dim, sizes_.dim + sizes_.v_more);
    return {.dtype = cache,
            .layout = sizes_.layout,
            .num_blocks = kBlocks,
            .num_heads = sizes_.kv_heads,
            .block_size = kBlockSize,
            .dim = sizes_.dim,
            .block_stride = kBlockSize * sizes_.kv_heads * width + 8};
  }
  static std::vector<std::byte> Canaries(const CachePlane& plane) {
    return std::vector<std::byte>(kBlocks * plane.block_stride * SizeOf(plane.dtype),
                                  std::byte{0xff});
  }

  const HeadSizes sizes_;
  const DeviceFloats rows_;  // [kTokens, keys, values, queries, kGap]
  CachePlane k_, v_;
  const DeviceArray<std::byte> k_bytes_, v_bytes_;
  const DeviceFloats cos_, sin_;
  const DeviceArray<float> scales_;
  const DeviceArray<int64_t> slots_{
      std::vector<int64_t>{3, -1, 0, kBlocks* kBlockSize - 1, kBlockSize, -7}};
};

using RopeAndCacheTest = DeviceCaseTest;

TEST_P(RopeAndCacheTest, WritesTheBytesOfRopeAndReshapeAndCache) {
  const DType type = GetParam().in;
  const HeadSizes shapes[] = {{},
                              {.dim = 8, .rotary_dim = 8, .q_heads = 1, .kv_heads = 1},
                              {.dim = 80, .rotary_dim = 32, .q_heads = 6, .kv_heads = 3},
                              {.dim = 96, .rotary_dim = 72, .layout = CacheLayout::kNhd},
                              {.dim = 128, .rotary_dim = 128, .q_heads = 9, .kv_heads = 1},
                              {.dim = 16, .rotary_dim = 8, .v_more = 24},
                              {.dim = 24, .rotary_dim = 24, .v_more = -8},
                              {.dim = 16, .rotary_dim = 16, .num_scales = 1},
                              {.dim = 16, .rotary_dim = 8, .kv_heads = 4, .num_scales = 4}};
  for (const DType cache : {type, DType::kFp8E4M3, DType::kFp8E5M2}) {
    for (const HeadSizes& sizes : shapes) {
      for (const bool has_q : {true, false}) {
        if (sizes.num_scales > 0 && !IsFp8(cache)) continue;
        SCOPED_TRACE(std::string(ToString(cache)) + " dim " + std::to_string(sizes.dim) + " of " +
                     std::to_string(sizes.rotary_dim) + (has_q ? "" : " without q"));
        const LayerRows expected(sizes, type, cache), got(sizes, type, cache);
        RopeAndCacheArgs args = expected.Args();
        ASSERT_EQ(has_q ? Rope(args.RopeOfQ(), nullptr) : cudaSuccess, cudaSuccess);
        ASSERT_EQ(Rope(args.RopeOfKey(), nullptr), cudaSuccess);
        ASSERT_EQ(ReshapeAndCache(args.Write(), nullptr), cudaSuccess);
        args = got.Args();
        if (!has_q) args.q = {};
        ASSERT_TRUE(RopeAndCacheServes(args));
        ASSERT_EQ(RopeAndCache(args, nullptr), cudaSuccess);
        EXPECT_TRUE(got.K() == expected.K());
        EXPECT_TRUE(got.V() == expected.V());
        const auto bits = [&](const LayerRows& layer) {
          return Encode(DType::kF32, LayerRows::BehindKeys(sizes, layer.Rows()));
        };
        EXPECT_TRUE(bits(got) == bits(expected));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RopeAndCacheTest,
                         testing::Values(DeviceCase{DType::kBF16, DType::kBF16, 1},
                                         DeviceCase{DType::kF16, DType::kF16, 2}),
                         NameOfCase);

using RopeAndCacheServesTest = DeviceTest;

// What vectors cannot load, or no model has.
TEST_F(RopeAndCacheServesTest, LeavesTheRestToTheOperatorsApart) {
  const LayerRows layer({}, DType::kBF16, DType::kBF16);
  const RopeAndCacheArgs legal = layer.Args();
  ASSERT_TRUE(RopeAndCacheServes(legal));
  const auto refused = [&](auto spoil) {
    RopeAndCacheArgs args = legal;
    spoil(args);
    return !RopeAndCacheServes(args) && RopeAndCache(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](auto& a) { a.rotary_dim = 0; }));
  EXPECT_TRUE(refused([](auto& a) { a.rotary_dim = 12; }));
  EXPECT_TRUE(refused([](auto& a) { a.k_cache.dim = 12; }));
  EXPECT_TRUE(refused([](auto& a) { a.v_cache.dim = 12; }));
  EXPECT_TRUE(refused([](auto& a) { a.key.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](auto& a) { a.q.dtype = DType::kF16; }));
  EXPECT_TRUE(refused([](auto& a) { a.value.dtype = DType::kF16; }));
  EXPECT_TRUE(refused([](auto& a) { a.k_cache.dtype = a.v_cache.dtype = DType::kF16; }));
  EXPECT_TRUE(refused([](auto& a) { a.v_cache.dtype = DType::kFp8E4M3; }));
  EXPECT_TRUE(refused([](auto& a) { a.v_cache.layout = CacheLayout::kNhd; }));
  EXPECT_TRUE(refused([](auto& a) { a.k_cache.layout = a.v_cache.layout = CacheLayout::kPacked; }));
  EXPECT_TRUE(refused([](auto& a) { a.q = a.q.At(1); }));
  EXPECT_TRUE(refused([](auto& a) { a.q_stride += 2; }));
  EXPECT_TRUE(refused([](auto& a) { a.key = a.key.At(2); }));
  EXPECT_TRUE(refused([](auto& a) { a.value_stride += 1; }));
  EXPECT_TRUE(refused([](auto& a) { ++a.cos; }));
  EXPECT_TRUE(refused([](auto& a) { ++a.sin; }));
  RopeAndCacheArgs none = legal;
  none.num_tokens = 0;
  EXPECT_EQ(RopeAndCache(none, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace baton::cuda
