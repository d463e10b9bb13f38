#include "kernels/cpu/lane_convert.h"

#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

// The finite codes of an fp8 type from 0 upwards, with their values.
std::vector<double> FiniteValues(DType dtype) {
  std::vector<double> values;
  for (int code = 0; code < 128; ++code) {
    const double value = DecodeFp8(dtype, static_cast<uint8_t>(code));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

// The code nearest to x among the values, ties to the even code, by search.
uint8_t NearestCode(const std::vector<double>& values, float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const double old = std::fabs(values[best] - magnitude), now = std::fabs(values[i] - magnitude);
    if (now < old || (now == old && i % 2 == 0)) best = i;
  }
  if (magnitude > values.back()) best = values.size() - 1;
  return sign | static_cast<uint8_t>(best);
}

// Every value, every middle between neighbours and its two neighbours in f32, beyond the greatest.
std::vector<float> Probes(const std::vector<double>& values) {
  std::vector<float> probes = {0.0f, 1e-45f, 1e-38f, 1e30f, INFINITY, 1e-9f};
  for (size_t i = 0; i < values.size(); ++i) {
    const double next = i + 1 < values.size() ? values[i + 1] : 2 * values[i] - values[i - 1];
    const auto middle = static_cast<float>((values[i] + next) / 2);
    for (const float x : {static_cast<float>(values[i]), middle, std::nextafter(middle, 1e30f),
                          std::nextafter(middle, 0.0f)}) {
      probes.push_back(x);
    }
  }
  const size_t positive = probes.size();
  for (size_t i = 0; i < positive; ++i) probes.push_back(-probes[i]);
  return probes;
}

class Fp8Test : public KernelTest {
 protected:
  // One token of one head through the cache.
  CachePlane Plane(DType dtype, std::vector<std::byte>& bytes) {
    return {.data = bytes.data(),
            .dtype = dtype,
            .num_blocks = 1,
            .num_heads = 1,
            .block_size = 1,
            .dim = static_cast<int32_t>(bytes.size()),
            .block_stride = std::ssize(bytes)};
  }
};

TEST_P(Fp8Test, WritesRoundToTheNearestCodeTiesToEvenAndSaturate) {
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    const std::vector<double> values = FiniteValues(dtype);
    EXPECT_EQ(values.back(), dtype == DType::kFp8E4M3 ? 448 : 57344);
    const std::vector<float> probes = Probes(values);
    std::vector<std::byte> k(probes.size()), v(probes.size());
    const int64_t slot = 0, dim = std::ssize(probes);
    ASSERT_TRUE(kernels_
                    ->ReshapeAndCache({.key = probes.data(),
                                       .key_stride = dim,
                                       .value = probes.data(),
                                       .value_stride = dim,
                                       .slot_mapping = &slot,
                                       .num_tokens = 1,
                                       .k_cache = Plane(dtype, k),
                                       .v_cache = Plane(dtype, v)})
                    .ok());
    for (size_t i = 0; i < probes.size(); ++i) {
      EXPECT_EQ(static_cast<int>(k[i]), NearestCode(values, probes[i])) << probes[i];
    }
    EXPECT_EQ(k, v);
  }
}

TEST_P(Fp8Test, EveryCodeReadsBackAsItsValueTimesTheScale) {
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    std::vector<std::byte> k(256), v(256);
    for (int i = 0; i < 256; ++i) v[i] = static_cast<std::byte>(i);
    // With a single key the output is its value.
    const std::vector<float> q(256, 1.0f);
    std::vector<float> out(256);
    const float scale = 0.3f;
    const int32_t table = 0, seq_len = 1;
    PagedAttentionArgs args{.q = q.data(),
                            .q_stride = 256,
                            .num_heads = 1,
                            .num_seqs = 1,
                            .block_tables = &table,
                            .max_blocks = 1,
                            .seq_lens = &seq_len,
                            .max_seq_len = 1,
                            .k_cache = Plane(dtype, k),
                            .v_cache = Plane(dtype, v),
                            .out = out.data(),
                            .out_stride = 256};
    args.v_cache.scales = &scale;
    args.v_cache.num_scales = 1;
    ASSERT_TRUE(kernels_->PagedAttention(args).ok());
    for (int i = 0; i < 256; ++i) {
      const auto expected = static_cast<float>(DecodeFp8(dtype, static_cast<uint8_t>(i))) * scale;
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(out[i])) << i;
      } else {
        EXPECT_EQ(out[i], expected) << i;
      }
    }
  }
}

TEST_P(Fp8Test, WritesDivideByTheScaleOfTheirHead) {
  const int32_t heads = 3, dim = 8;
  const std::vector<float> x = RandomFloats(1, heads * dim), scales = {0.5f, 0.25f, 3.0f};
  std::vector<std::byte> k(heads * dim), v(heads * dim);
  CachePlane plane{.data = k.data(),
                   .dtype = DType::kFp8E4M3,
                   .num_blocks = 1,
                   .num_heads = heads,
                   .block_size = 1,
                   .dim = dim,
                   .block_stride = heads * dim,
                   .scales = scales.data(),
                   .num_scales = heads};
  CachePlane v_plane = plane;
  v_plane.data = v.data();
  v_plane.num_scales = 1;
  const int64_t slot = 0;
  ASSERT_TRUE(kernels_
                  ->ReshapeAndCache({.key = x.data(),
                                     .key_stride = heads * dim,
                                     .value = x.data(),
                                     .value_stride = heads * dim,
                                     .slot_mapping = &slot,
                                     .num_tokens = 1,
                                     .k_cache = plane,
                                     .v_cache = v_plane})
                  .ok());
  const std::vector<double> values = FiniteValues(DType::kFp8E4M3);
  for (int i = 0; i < heads * dim; ++i) {
    EXPECT_EQ(static_cast<int>(k[i]), NearestCode(values, x[i] / scales[i / dim]));
    EXPECT_EQ(static_cast<int>(v[i]), NearestCode(values, x[i] / scales[0]));
  }
}

BATON_FOR_EACH_KERNEL_SET(Fp8Test);

}  // namespace
}  // namespace baton
