#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

// Norms: tests/kernels/norms_test.cc, for all devices.
class ElementwiseTest : public KernelTest {};

TEST_P(ElementwiseTest, RopeRotatesHalvesAndLeavesTheRest) {
  for (const auto& [dim, rotary] : {std::pair{8, 8}, {10, 10}, {80, 80}, {64, 32}, {6, 2}}) {
    const int64_t heads = 3, tokens = 4, half = rotary / 2, stride = heads * dim + 5;
    const std::vector<float> x = RandomFloats(dim, tokens * stride);
    const std::vector<float> cos = RandomFloats(1, tokens * half);
    const std::vector<float> sin = RandomFloats(2, tokens * half);
    std::vector<float> got = x;
    ASSERT_TRUE(kernels_
                    ->Rope({.x = got.data(),
                            .x_stride = stride,
                            .num_tokens = tokens,
                            .num_heads = heads,
                            .head_dim = dim,
                            .rotary_dim = rotary,
                            .cos = cos.data(),
                            .sin = sin.data()})
                    .ok());
    std::vector<float> expected = x;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const int64_t a = t * stride + h * dim + i, b = a + half, c = t * half + i;
          expected[a] = static_cast<float>(double{x[a]} * cos[c] - double{x[b]} * sin[c]);
          expected[b] = static_cast<float>(double{x[b]} * cos[c] + double{x[a]} * sin[c]);
        }
      }
    }
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-7) << i;
  }
}

constexpr ActivationKind kActivations[] = {ActivationKind::kSilu, ActivationKind::kGelu,
                                           ActivationKind::kGeluTanh, ActivationKind::kRelu};

double ActivationOf(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::kSilu:
      return x / (1 + std::exp(-x));
    case ActivationKind::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationKind::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ActivationKind::kRelu:
      return std::max(x, 0.0);
  }
  return NAN;
}

TEST_P(ElementwiseTest, ActivationTimesUpAgreesWithItsFormula) {
  for (const ActivationKind activation : kActivations) {
    const int64_t dim = 37, tokens = 3;
    std::vector<float> x = RandomFloats(8, tokens * 2 * dim);
    for (float& f : x) f *= 8;
    GuardedFloats out(tokens * dim);
    ASSERT_TRUE(kernels_
                    ->ActivationAndMul({.gate_up = x.data(),
                                        .num_tokens = tokens,
                                        .dim = dim,
                                        .activation = activation,
                                        .out = out.data()})
                    .ok());
    EXPECT_TRUE(out.GuardsIntact());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < dim; ++i) {
        const double g = x[t * 2 * dim + i], up = x[t * 2 * dim + dim + i];
        EXPECT_NEAR(out.data()[t * dim + i], ActivationOf(activation, g) * up, 2e-5);
      }
    }
  }
}

// Of rows with gaps between them the values are those of dense rows, and the gaps stay.
TEST_P(ElementwiseTest, RowsMayHaveGaps) {
  const int64_t dim = 21, tokens = 3, stride = 50;
  const auto spread = [&](const std::vector<float>& dense, int64_t width) {
    std::vector<float> rows(tokens * stride, NAN);
    for (int64_t i = 0; i < tokens * width; ++i) rows[i / width * stride + i % width] = dense[i];
    return rows;
  };
  const auto expect_rows = [&](const std::vector<float>& got, const std::vector<float>& dense) {
    for (int64_t i = 0; i < tokens * stride; ++i) {
      if (i % stride >= dim) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], dense[i / stride * dim + i % stride]) << i;
      }
    }
  };
  const std::vector<float> gate_up = RandomFloats(8, tokens * 2 * dim);
  std::vector<float> dense(tokens * dim);
  ActivationAndMulArgs gated{
      .gate_up = gate_up.data(), .num_tokens = tokens, .dim = dim, .out = dense.data()};
  ASSERT_TRUE(kernels_->ActivationAndMul(gated).ok());
  const std::vector<float> gaps = spread(gate_up, 2 * dim);
  std::vector<float> out(tokens * stride, NAN);
  gated.gate_up = gaps.data();
  gated.gate_up_stride = gated.out_stride = stride;
  gated.out = out.data();
  ASSERT_TRUE(kernels_->ActivationAndMul(gated).ok());
  expect_rows(out, dense);

  const std::vector<float> weights = RandomFloats(4, 5 * dim);
  const WeightRows part{reinterpret_cast<const std::byte*>(weights.data()), DType::kF32, 5};
  const auto table = kernels_->PackWeights({.parts = &part, .num_parts = 1, .k = dim});
  const int32_t ids[] = {4, 0, 4};
  EmbeddingArgs embedding{
      .shards = {&*table}, .tokens = ids, .num_tokens = tokens, .out = dense.data()};
  ASSERT_TRUE(kernels_->Embedding(embedding).ok());
  std::fill(out.begin(), out.end(), NAN);
  embedding.out = out.data();
  embedding.out_stride = stride;
  ASSERT_TRUE(kernels_->Embedding(embedding).ok());
  expect_rows(out, dense);
}

// Byte by byte, for a row may hold -0 or a NaN.
TEST_P(ElementwiseTest, ATableInShardsGivesTheRowsOfTheWhole) {
  const int64_t dim = 37, vocab = 23;
  std::vector<float> values = RandomFloats(1, vocab * dim);
  values[7 * dim] = -0.0f;
  values[8 * dim + 1] = BitsFloat(0x7fc12345u);
  const auto pack = [&](int64_t first, int64_t rows) {
    const WeightRows part{reinterpret_cast<const std::byte*>(values.data() + first * dim),
                          DType::kF32, rows};
    return *kernels_->PackWeights({.parts = &part, .num_parts = 1, .k = dim});
  };
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 3 * vocab; ++i) ids.push_back(i * 7 % vocab);
  const auto num_tokens = static_cast<int64_t>(ids.size());
  for (const int32_t shards : {1, 2, 3, 4, 8}) {
    EmbeddingArgs args{.num_shards = shards,
                       .rows_each = (vocab + shards - 1) / shards,
                       .tokens = ids.data(),
                       .num_tokens = num_tokens};
    std::vector<PackedMatrix> parts;
    for (int32_t i = 0; i < shards; ++i) {
      const int64_t first = i * args.rows_each;
      parts.push_back(pack(first, std::min(args.rows_each, vocab - first)));
    }
    for (int32_t i = 0; i < shards; ++i) args.shards[i] = &parts[i];
    EXPECT_EQ(args.num_rows(), vocab);
    GuardedFloats out(num_tokens * dim);
    args.out = out.data();
    ASSERT_EQ(kernels_->Embedding(args), absl::OkStatus());
    EXPECT_TRUE(out.GuardsIntact());
    for (int64_t t = 0; t < num_tokens; ++t) {
      const float* row = values.data() + ids[t] * dim;
      EXPECT_EQ(std::memcmp(out.data() + t * dim, row, dim * sizeof(float)), 0) << t;
    }
    ids[5] = vocab;
    EXPECT_EQ(kernels_->Embedding(args).message(), "tokens[5] = 23: must be in [0, 23)");
    ids[5] = 5 * 7 % vocab;
  }
}

TEST_P(ElementwiseTest, AnEmbeddingMayBeScaled) {
  const int64_t dim = 37;
  const std::vector<float> values = RandomFloats(1, 5 * dim);
  const WeightRows part{reinterpret_cast<const std::byte*>(values.data()), DType::kF32, 5};
  const auto table = kernels_->PackWeights({.parts = &part, .num_parts = 1, .k = dim});
  const int32_t ids[] = {4, 0};
  std::vector<float> out(2 * dim);
  EmbeddingArgs args{.shards = {&*table},
                     .tokens = ids,
                     .num_tokens = 2,
                     .scale = 6.7823300f,
                     .out = out.data()};
  ASSERT_EQ(kernels_->Embedding(args), absl::OkStatus());
  for (int64_t i = 0; i < 2 * dim; ++i) {
    EXPECT_EQ(out[i], values[ids[i / dim] * dim + i % dim] * 6.7823300f);
  }
  args.scale = INFINITY;
  EXPECT_EQ(kernels_->Embedding(args).message(), "scale = inf: must be finite");
}

TEST_P(ElementwiseTest, AFoldMayAddToItsFirstPartAndRound) {
  const int64_t tokens = 3, dim = 37, stride = 40;
  const std::vector<float> first = RandomFloats(1, tokens * stride);
  const std::vector<float> second = RandomFloats(2, tokens * stride);
  std::vector<float> sum = first;
  FoldPartialsArgs add{.parts = {sum.data(), second.data()},
                       .num_parts = 2,
                       .part_stride = stride,
                       .num_tokens = tokens,
                       .dim = dim,
                       .out = sum.data(),
                       .out_stride = stride};
  ASSERT_EQ(kernels_->FoldPartials(add), absl::OkStatus());
  std::vector<float> rounded(tokens * stride);
  ASSERT_EQ(kernels_->FoldPartials({.parts = {sum.data()},
                                    .part_stride = stride,
                                    .num_tokens = tokens,
                                    .dim = dim,
                                    .round_to = DType::kBF16,
                                    .out = rounded.data(),
                                    .out_stride = stride}),
            absl::OkStatus());
  int64_t changed = 0;
  for (int64_t i = 0; i < tokens * stride; ++i) {
    if (i % stride >= dim) continue;
    EXPECT_EQ(sum[i], first[i] + second[i]);
    EXPECT_EQ(std::bit_cast<uint32_t>(rounded[i]) & 0xffff, 0u);
    EXPECT_NEAR(rounded[i], sum[i], std::abs(sum[i]) / 256);
    changed += rounded[i] != sum[i];
  }
  EXPECT_GT(changed, tokens * dim / 2);
}

TEST_P(ElementwiseTest, PartialsAddAsABalancedTreeAndThenTheBias) {
  const int64_t tokens = 5, dim = 37, part_stride = 40, out_stride = 41;
  std::vector<std::vector<float>> parts;
  for (int32_t p = 0; p < kMaxRanks; ++p) parts.push_back(RandomFloats(p, tokens * part_stride));
  const std::vector<float> bias = RandomFloats(9, dim);
  for (const int32_t num_parts : {1, 2, 4, 8}) {
    for (const bool has_bias : {false, true}) {
      GuardedFloats out(tokens * out_stride);
      FoldPartialsArgs args{.num_parts = num_parts,
                            .part_stride = part_stride,
                            .num_tokens = tokens,
                            .dim = dim,
                            .bias = has_bias ? bias.data() : nullptr,
                            .out = out.data(),
                            .out_stride = out_stride};
      for (int32_t p = 0; p < num_parts; ++p) args.parts[p] = parts[p].data();
      ASSERT_EQ(kernels_->FoldPartials(args), absl::OkStatus());
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < out_stride; ++i) {
          std::vector<float> sums;
          for (int32_t p = 0; p < num_parts; ++p) {
            sums.push_back(i < dim ? parts[p][t * part_stride + i] : 0);
          }
          for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
            for (size_t p = 0; 2 * p < sums.size(); ++p) sums[p] = sums[2 * p] + sums[2 * p + 1];
          }
          if (has_bias && i < dim) sums[0] += bias[i];
          EXPECT_EQ(out.data()[t * out_stride + i], i < dim ? sums[0] : GuardedFloats::kCanary);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, ActivationAgreesWithItsFormulaFromFarBelowToFarAboveZero) {
  const int64_t n = 2001;
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i - 1000) * 0.0201f;
  for (const ActivationKind activation : kActivations) {
    GuardedFloats out(n);
    std::copy(x.begin(), x.end(), out.data());
    ASSERT_TRUE(kernels_
                    ->Activation({.x = out.data(),
                                  .num_tokens = 1,
                                  .dim = n,
                                  .activation = activation,
                                  .out = out.data()})
                    .ok());
    EXPECT_TRUE(out.GuardsIntact());
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(out.data()[i], ActivationOf(activation, x[i]), 3e-6) << x[i];
    }
  }
}

TEST_P(ElementwiseTest, SoftcapBendsLogitsTowardsItsCapInPlace) {
  const int64_t dim = 21, stride = 24;
  std::vector<float> x = RandomFloats(3, 3 * stride);
  for (float& f : x) f *= 200;
  std::vector<float> got = x;
  ASSERT_TRUE(
      kernels_
          ->Softcap({.x = got.data(), .x_stride = stride, .num_tokens = 3, .dim = dim, .cap = 30})
          .ok());
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    if (i % stride >= dim) {
      EXPECT_EQ(got[i], x[i]);
    } else {
      EXPECT_NEAR(got[i], 30 * std::tanh(x[i] / 30.0), 1e-5);
    }
  }
}

TEST_P(ElementwiseTest, ReshapeAndCacheWritesItsSlotsOnlyAndSkipsPadding) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const int32_t heads = 2, dim = 6, block_size = 4, blocks = 5;
    const int64_t size = SizeOf(dtype), plane_bytes = blocks * heads * block_size * dim * size;
    std::vector<std::byte> k(plane_bytes, std::byte{0xA5}), v = k;
    const std::vector<int64_t> slots = {7, -1, 19, 0};
    const std::vector<float> key = RandomFloats(1, 4 * 20), value = RandomFloats(2, 4 * 20);
    const CachePlane plane{.dtype = dtype,
                           .num_blocks = blocks,
                           .num_heads = heads,
                           .block_size = block_size,
                           .dim = dim,
                           .block_stride = heads * block_size * dim};
    ReshapeAndCacheArgs args{.key = key.data(),
                             .key_stride = 20,
                             .value = value.data(),
                             .value_stride = 20,
                             .slot_mapping = slots.data(),
                             .num_tokens = 4,
                             .k_cache = plane,
                             .v_cache = plane};
    args.k_cache.data = k.data();
    args.v_cache.data = v.data();
    std::vector<std::byte> expected_k = k, expected_v = v;
    const std::vector<std::byte> key_bytes = Encode(dtype, key), value_bytes = Encode(dtype, value);
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t h = 0; h < heads && slots[t] >= 0; ++h) {
        const int64_t block = slots[t] / block_size, offset = slots[t] % block_size;
        const int64_t to = ((block * heads + h) * block_size + offset) * dim * size;
        const int64_t from = (t * 20 + h * dim) * size;
        std::memcpy(&expected_k[to], &key_bytes[from], dim * size);
        std::memcpy(&expected_v[to], &value_bytes[from], dim * size);
      }
    }
    ASSERT_TRUE(kernels_->ReshapeAndCache(args).ok());
    EXPECT_EQ(k, expected_k);
    EXPECT_EQ(v, expected_v);
  }
}

BATON_FOR_EACH_KERNEL_SET(ElementwiseTest);

}  // namespace
}  // namespace baton
