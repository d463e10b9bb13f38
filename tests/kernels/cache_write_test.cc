// ReshapeAndCache of every device: all bytes of both planes, against what each token's heads are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/op_cases.h"

namespace baton {
namespace {

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

// Elements from the front of a plane, which is not packed, to a head's row.
int64_t PlaceOf(const CachePlane& plane, int64_t slot, int64_t head) {
  const bool by_head = plane.layout == CacheLayout::kHnd;
  int64_t token_stride = plane.token_stride, head_stride = plane.head_stride;
  if (token_stride == 0 && by_head) token_stride = plane.dim;
  if (head_stride == 0) head_stride = by_head ? plane.block_size * token_stride : plane.dim;
  if (token_stride == 0) token_stride = plane.num_heads * head_stride;
  return slot / plane.block_size * plane.block_stride + slot % plane.block_size * token_stride +
         head * head_stride;
}

// How a write differs from the plainest one.
struct Variant {
  std::vector<float> scales = {};  // K's.
  size_t shift = 0;                // Elements that all rows lie further on, and both planes.
  size_t cache_shift = 0;
  int32_t v_more = 0;  // By which rows of V are longer.
  std::vector<int64_t> slots = {};
};

class CacheWriteTest : public OpTest {
 protected:
  // All types of caches that rows of this type are written to.
  std::vector<DType> Caches() const {
    std::vector<DType> caches = {DType::kF32, DType::kFp8E4M3, DType::kFp8E5M2};
    for (const DType half : {DType::kF16, DType::kBF16}) {
      const bool refused = GetParam().typed && in_ != DType::kF32 && in_ != half;
      if (!refused) caches.push_back(half);
    }
    return caches;
  }

  // `bytes` when a plane that begins at `front` has rows of x in these slots.
  static std::vector<std::byte> Written(std::vector<std::byte> bytes, int64_t front,
                                        const CachePlane& plane, const float* x, int64_t stride,
                                        const std::vector<int64_t>& slots) {
    for (size_t t = 0; t < slots.size(); ++t, x += stride) {
      for (int64_t h = 0; h < plane.num_heads && slots[t] >= 0; ++h) {
        std::vector<float> row(x + h * plane.dim, x + (h + 1) * plane.dim);
        for (float& v : row) {
          if (plane.num_scales > 0) v /= plane.scales[plane.num_scales == 1 ? 0 : h];
        }
        const auto encoded = Encode(plane.dtype, row);
        const int64_t to = front + PlaceOf(plane, slots[t], h) * SizeOf(plane.dtype);
        std::copy(encoded.begin(), encoded.end(), bytes.begin() + to);
      }
    }
    return bytes;
  }

  // Both planes hold 0xff until they are written.
  void ExpectBytes(const CachePlane& shape, uint64_t seed, const Variant& variant = {}) {
    std::vector<int64_t> slots = variant.slots;
    if (slots.empty()) slots = {3, -1, 0, 5 * shape.block_size - 1, shape.block_size, -7};
    const int64_t tokens = std::ssize(slots), stride = int64_t{shape.num_heads} * shape.dim + 4;
    const int64_t v_stride = stride + int64_t{shape.num_heads} * variant.v_more;
    auto key = RandomFloats(seed, tokens * stride);
    auto value = RandomFloats(seed + 1, tokens * v_stride);
    for (float& x : key) x *= 300;  // fp8 saturates for some.
    for (size_t i = 0; i < std::size(kSpecials) && i < value.size(); ++i) value[i] = kSpecials[i];
    // A NaN by the last of its bits alone.
    if (tokens > 4) value[4 * v_stride - 5] = BitsFloat(0x7f800001u);
    key = Behind(variant.shift, Rounded(in_, key));
    value = Behind(variant.shift, Rounded(in_, value));
    const float *k_rows = key.data() + variant.shift, *v_rows = value.data() + variant.shift;
    CachePlane k_plane = shape, v_plane = WithMoreGaps(shape, 16);
    const int64_t size = SizeOf(shape.dtype), front = variant.cache_shift * size;
    std::vector<std::byte> k(front + 5 * k_plane.block_stride * size + 64, std::byte{0xff});
    std::vector<std::byte> v(front + 5 * v_plane.block_stride * size + 64, std::byte{0xff});
    k_plane.data = k.data() + front;
    v_plane.data = v.data() + front;
    v_plane.dim += variant.v_more;
    const auto v_scales = ScalesOfV(variant.scales, shape.num_heads);
    k_plane.scales = variant.scales.data();
    v_plane.scales = v_scales.data();
    k_plane.num_scales = static_cast<int32_t>(variant.scales.size());
    v_plane.num_scales = static_cast<int32_t>(v_scales.size());
    const auto expected_k = Written(k, front, k_plane, k_rows, stride, slots);
    const auto expected_v = Written(v, front, v_plane, v_rows, v_stride, slots);
    ASSERT_EQ(ops_->ReshapeAndCache({k_rows, stride, v_rows, v_stride, slots.data(), tokens,
                                     k_plane, v_plane}),
              absl::OkStatus());
    EXPECT_TRUE(k == expected_k) << ToString(shape.dtype) << " dim " << shape.dim;
    EXPECT_TRUE(v == expected_v) << ToString(shape.dtype) << " dim " << shape.dim;
  }
};

TEST_P(CacheWriteTest, WritesItsSlotsOnlyAndSkipsPadding) {
  uint64_t seed = seed_;
  for (const DType cache : Caches()) {
    for (const int32_t dim : {6, 8, 20, 64, 80}) {
      for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd}) {
        const CachePlane shape{.dtype = cache,
                               .layout = layout,
                               .num_blocks = 5,
                               .num_heads = 3,
                               .block_size = 12,
                               .dim = dim,
                               .block_stride = 12 * 3 * dim + (dim % 8 == 0 ? 8 : 1)};
        ExpectBytes(shape, ++seed, {.shift = seed % 2});
        if (!IsFp8(cache)) continue;
        ExpectBytes(shape, seed, {.scales = {0.25f}});
        ExpectBytes(shape, seed, {.scales = {0.5f, 0.25f, 0.3f}});
      }
    }
  }
}

// The bytes of a token are its own, alone, among others and in any order.
TEST_P(CacheWriteTest, ManyTokensFillACacheInAnyOrder) {
  for (const DType cache : Caches()) {
    const CachePlane shape{.dtype = cache,
                           .num_blocks = 5,
                           .num_heads = 2,
                           .block_size = 12,
                           .dim = 16,
                           .block_stride = 2 * 12 * 16};
    std::vector<int64_t> ascending, mixed;
    for (int64_t slot = 0; slot < 60; ++slot) {
      ascending.push_back(slot);
      mixed.push_back(slot * 37 % 60);
    }
    for (const std::vector<int64_t>& slots : {ascending, mixed, {59}, {-1}}) {
      ExpectBytes(shape, seed_, {.slots = slots});
    }
  }
}

// Any stride, the size of heads and the plane's address may keep groups of a row from being
// vectors.
TEST_P(CacheWriteTest, FollowsTheStridesOfAPlaneWhateverIsOdd) {
  for (const DType cache : Caches()) {
    const CachePlane even{.dtype = cache,
                          .num_blocks = 5,
                          .num_heads = 2,
                          .block_size = 8,
                          .dim = 16,
                          .block_stride = 2 * 8 * 24 + 16,
                          .head_stride = 8 * 24 + 8,
                          .token_stride = 24};
    CachePlane by_token = even, blocks = even, tokens = even, heads = even, dim = even;
    by_token.layout = CacheLayout::kNhd;
    by_token.head_stride = 24;
    by_token.token_stride = 48;
    dim.dim = 12;
    ++blocks.block_stride;
    --tokens.token_stride;
    ++heads.head_stride;
    for (const CachePlane& shape : {even, by_token, blocks, tokens, heads, dim}) {
      ExpectBytes(shape, 5);
    }
    ExpectBytes(even, 6, {.cache_shift = 1});
    // V alone needs more blocks of threads than one.
    const CachePlane many{.dtype = cache,
                          .num_blocks = 5,
                          .num_heads = 16,
                          .block_size = 8,
                          .dim = 8,
                          .block_stride = 8 * 16 * 40};
    ExpectBytes(many, 7, {.v_more = 32});
    ExpectBytes(even, 8, {.v_more = -8});
  }
}

BATON_FOR_EACH_OP_CASE(CacheWriteTest, OpCasesOfOneType());

}  // namespace
}  // namespace baton
