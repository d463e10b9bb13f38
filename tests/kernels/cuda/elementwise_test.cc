#include "kernels/cuda/elementwise.h"

#include <algorithm>
#include <vector>

#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

constexpr int64_t kDims[] = {1, 2, 3, 4, 6, 64, 127, 1030};
constexpr ActivationKind kKinds[] = {ActivationKind::kSilu, ActivationKind::kGelu,
                                     ActivationKind::kGeluTanh, ActivationKind::kRelu};

// The operators of the CPU are the oracle: what works on each element alone has its bits.
class ElementwiseTest : public DeviceCaseTest {
 protected:
  std::unique_ptr<CpuKernels> cpu_ = MakeTestKernels("portable");
  // Also large ones, where functions saturate.
  std::vector<float> Values(DType dtype, uint64_t seed, int64_t n) {
    auto x = RandomFloats(seed, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= i % 7 == 0 ? 200.0f : 4.0f;
    return Rounded(dtype, x);
  }
};

TEST_P(ElementwiseTest, ActivationsHaveTheBitsOfTheCpu) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kDims) {
    for (const ActivationKind kind : kKinds) {
      for (const size_t shift : {0, 1}) {
        const auto x = Values(in, seed + dim, 3 * dim);
        std::vector<float> expected(3 * dim);
        ASSERT_TRUE(cpu_->Activation({x.data(), 3, dim, kind, out_type, expected.data()}).ok());
        const DeviceFloats device_x(in, x, shift), out(out_type, 3 * dim);
        ASSERT_EQ(Activation({device_x, 3, dim, kind, out_type, out}, nullptr), cudaSuccess);
        EXPECT_EQ(out.Read(), expected) << dim;
      }
    }
  }
}

TEST_P(ElementwiseTest, GatedActivationsHaveTheBitsOfTheCpu) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kDims) {
    for (const ActivationKind kind : kKinds) {
      const auto x = Values(in, seed + dim, 3 * 2 * dim);
      std::vector<float> expected(3 * dim);
      ASSERT_TRUE(
          cpu_->ActivationAndMul({x.data(), 3, dim, kind, out_type, expected.data()}).ok());
      const DeviceFloats device_x(in, x), out(out_type, 3 * dim);
      ASSERT_EQ(ActivationAndMul({device_x, 3, dim, kind, out_type, out}, nullptr), cudaSuccess);
      EXPECT_EQ(out.Read(), expected) << dim;
    }
  }
}

TEST_P(ElementwiseTest, WhatIsNoNumberStaysNone) {
  const auto [in, out_type, seed] = GetParam();
  const std::vector<float> x = {NAN, INFINITY, -INFINITY, 3e38f};
  for (const ActivationKind kind : kKinds) {
    std::vector<float> expected(4);
    ASSERT_TRUE(
        cpu_->Activation({Rounded(in, x).data(), 1, 4, kind, out_type, expected.data()}).ok());
    const DeviceFloats device_x(in, x), out(out_type, 4);
    ASSERT_EQ(Activation({device_x, 1, 4, kind, out_type, out}, nullptr), cudaSuccess);
    const auto got = out.Read();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) << i;
    }
  }
}

TEST_P(ElementwiseTest, RowsOfGatedActivationsMayHaveGaps) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : {3, 64}) {
    for (const int64_t gap : {1, 4}) {
      const int64_t stride = 2 * dim + gap, out_stride = dim + gap;
      const auto x = Values(in, seed + dim, 3 * stride);
      std::vector<float> expected(3 * out_stride, 7);
      ActivationAndMulArgs args{.gate_up = x.data(),
                                .num_tokens = 3,
                                .dim = dim,
                                .round_to = out_type,
                                .out = expected.data(),
                                .gate_up_stride = stride,
                                .out_stride = out_stride};
      ASSERT_TRUE(cpu_->ActivationAndMul(args).ok());
      const DeviceFloats device_x(in, x), out(out_type, std::vector<float>(3 * out_stride, 7));
      args.gate_up = device_x;
      args.out = out;
      ASSERT_EQ(ActivationAndMul(args, nullptr), cudaSuccess);
      EXPECT_EQ(out.Read(), expected) << dim << " " << gap;
    }
  }
}

TEST_P(ElementwiseTest, SoftcapHasTheBitsOfTheCpu) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kDims) {
    const int64_t stride = dim + 4;
    const auto x = Values(in, seed, 3 * stride);
    auto expected = x;
    ASSERT_TRUE(cpu_->Softcap({expected.data(), stride, 3, dim, 30.0f}).ok());
    const DeviceFloats device_x(in, x);
    ASSERT_EQ(Softcap({device_x, stride, 3, dim, 30.0f}, nullptr), cudaSuccess);
    EXPECT_EQ(device_x.Read(), Rounded(in, expected)) << dim;
  }
}

TEST_P(ElementwiseTest, RopeHasTheBitsOfTheCpu) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t rotary : {2, 6, 64}) {
    for (const bool interleaved : {false, true}) {
      const int64_t tokens = 5, heads = 3, head_dim = rotary + 4, stride = heads * head_dim + 8;
      const auto x = Rounded(in, RandomFloats(seed, tokens * stride));
      const auto cos = RandomFloats(seed + 1, tokens * rotary / 2);
      const auto sin = RandomFloats(seed + 2, tokens * rotary / 2);
      auto expected = x;
      const RopeArgs host{.x = expected.data(),
                          .x_stride = stride,
                          .num_tokens = tokens,
                          .num_heads = heads,
                          .head_dim = head_dim,
                          .rotary_dim = rotary,
                          .cos = cos.data(),
                          .sin = sin.data(),
                          .interleaved = interleaved};
      ASSERT_TRUE(cpu_->Rope(host).ok());
      const DeviceFloats device_x(in, x), device_cos(DType::kF32, cos);
      const DeviceFloats device_sin(DType::kF32, sin);
      RopeArgs args = host;
      args.x = device_x;
      args.cos = device_cos.f32();
      args.sin = device_sin.f32();
      ASSERT_EQ(Rope(args, nullptr), cudaSuccess);
      EXPECT_EQ(device_x.Read(), Rounded(in, expected)) << rotary << interleaved;
    }
  }
}

TEST_P(ElementwiseTest, EmbeddingCopiesTheRowsOfItsTokens) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kDims) {
    for (const int64_t gap : {0, 1, 4}) {
      const int64_t stride = dim + gap;
      const auto values = Rounded(in, RandomFloats(seed, 11 * dim));
      const std::vector<int32_t> tokens = {10, 0, 4, 4};
      std::vector<float> expected(tokens.size() * stride, 7);
      for (size_t t = 0; t < tokens.size(); ++t) {
        std::copy_n(&values[tokens[t] * dim], dim, &expected[t * stride]);
      }
      const PackedMatrix table = DeviceMatrix(in, values, 11, dim);
      const DeviceFloats out(out_type, std::vector<float>(expected.size(), 7));
      const DeviceArray<int32_t> device_tokens(tokens);
      ASSERT_EQ(Embedding({.shards = {&table},
                           .tokens = device_tokens.data(),
                           .num_tokens = std::ssize(tokens),
                           .out = out,
                           .out_stride = gap == 0 ? 0 : stride},
                          nullptr),
                cudaSuccess);
      EXPECT_EQ(out.Read(), Rounded(out_type, expected)) << dim << " " << gap;
    }
  }
  const PackedMatrix panels(1, 1, in, WeightFormat::kCpuPanels, {});
  EXPECT_EQ(Embedding({.shards = {&panels}, .num_tokens = 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(Embedding({}, nullptr), cudaSuccess);  // No tokens.
}

TEST_P(ElementwiseTest, AnEmbeddingMayBeScaled) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kDims) {
    const auto values = Rounded(in, RandomFloats(seed, 3 * dim));
    std::vector<float> expected;
    for (const int64_t token : {2, 0}) {
      for (int64_t i = 0; i < dim; ++i) expected.push_back(values[token * dim + i] * 6.78233f);
    }
    const PackedMatrix table = DeviceMatrix(in, values, 3, dim);
    const DeviceFloats out(out_type, expected.size());
    const DeviceArray<int32_t> tokens({2, 0});
    ASSERT_EQ(Embedding({.shards = {&table},
                         .tokens = tokens.data(),
                         .num_tokens = 2,
                         .scale = 6.78233f,
                         .out = out},
                        nullptr),
              cudaSuccess);
    EXPECT_EQ(out.Read(), Rounded(out_type, expected)) << dim;
  }
}

TEST_P(ElementwiseTest, ATableInShardsGivesTheRowsOfTheWhole) {
  const auto [in, out_type, seed] = GetParam();
  for (const int64_t dim : kDims) {
    const int64_t vocab = 11;
    const auto values = Rounded(in, RandomFloats(seed, vocab * dim));
    const std::vector<int32_t> tokens = {10, 0, 4, 9, 3, 5, 1, 2, 8, 7, 6};
    std::vector<float> expected;
    for (const int32_t token : tokens) {
      expected.insert(expected.end(), &values[token * dim], &values[token * dim] + dim);
    }
    const DeviceArray<int32_t> device_tokens(tokens);
    for (const int32_t shards : {1, 2, 3, 8}) {
      const DeviceFloats out(out_type, expected.size());
      EmbeddingArgs args{.num_shards = shards,
                         .rows_each = (vocab + shards - 1) / shards,
                         .tokens = device_tokens.data(),
                         .num_tokens = vocab,
                         .out = out};
      std::vector<PackedMatrix> parts;
      for (int64_t first = 0; first < vocab; first += args.rows_each) {
        const int64_t rows = std::min(args.rows_each, vocab - first);
        const auto begin = values.begin() + first * dim;
        parts.push_back(DeviceMatrix(in, {begin, begin + rows * dim}, rows, dim));
      }
      args.num_shards = static_cast<int32_t>(parts.size());
      for (size_t i = 0; i < parts.size(); ++i) args.shards[i] = &parts[i];
      ASSERT_EQ(Embedding(args, nullptr), cudaSuccess);
      EXPECT_EQ(out.Read(), Rounded(out_type, expected)) << dim << ", " << shards;
    }
    const PackedMatrix table = DeviceMatrix(in, {values.begin(), values.begin() + dim}, 1, dim);
    const PackedMatrix panels(1, dim, in, WeightFormat::kCpuPanels, {});
    EXPECT_EQ(Embedding({.shards = {&table, &panels},
                         .num_shards = 2,
                         .rows_each = 1,
                         .tokens = device_tokens.data(),
                         .num_tokens = 1},
                        nullptr),
              cudaErrorInvalidValue);
  }
}

TEST_P(ElementwiseTest, PartialsAddAsABalancedTreeAndThenTheBias) {
  const auto [in, out_type, seed] = GetParam();
  const int64_t tokens = 3;
  for (const int64_t dim : kDims) {
    for (const int64_t gap : {0, 1, 4}) {
      const int64_t stride = dim + gap;
      std::vector<std::vector<float>> parts;
      std::vector<std::unique_ptr<DeviceFloats>> device_parts;
      for (int32_t p = 0; p < kMaxRanks; ++p) {
        parts.push_back(RandomFloats(seed + p, tokens * stride));
        // One that no vector can load.
        device_parts.push_back(std::make_unique<DeviceFloats>(DType::kF32, parts[p], p == 5));
      }
      const std::vector<float> bias = RandomFloats(seed + 8, dim);
      const DeviceFloats device_bias(DType::kF32, bias);
      for (const int32_t num_parts : {1, 2, 4, 8}) {
        const bool has_bias = num_parts != 2;
        std::vector<float> expected(tokens * stride, 7);
        for (int64_t i = 0; i < tokens * stride; ++i) {
          if (i % stride >= dim) continue;
          float s[kMaxRanks] = {};
          for (int32_t p = 0; p < num_parts; ++p) s[p] = parts[p][i];
          for (int32_t left = num_parts / 2; left > 0; left /= 2) {
            for (int32_t p = 0; p < left; ++p) s[p] = s[2 * p] + s[2 * p + 1];
          }
          expected[i] = s[0] + (has_bias ? bias[i % stride] : 0);
        }
        // One that no vector can store.
        const DeviceFloats out(out_type, std::vector<float>(tokens * stride, 7), num_parts == 2);
        FoldPartialsArgs args{.num_parts = num_parts,
                              .part_stride = gap == 0 ? 0 : stride,
                              .num_tokens = tokens,
                              .dim = dim,
                              .bias = has_bias ? device_bias.f32() : nullptr,
                              .out = out,
                              .out_stride = gap == 0 ? 0 : stride};
        for (int32_t p = 0; p < num_parts; ++p) args.parts[p] = device_parts[p]->f32();
        ASSERT_EQ(FoldPartials(args, nullptr), cudaSuccess);
        EXPECT_EQ(out.Read(), Rounded(out_type, expected)) << dim << ", " << num_parts;
      }
    }
  }
  // Nothing is read behind a bias at the end of its memory.
  const DeviceFloats part(DType::kF32, {1, 2, 3}), sum(out_type, 3);
  void* bias = nullptr;
  ASSERT_EQ(cudaMalloc(&bias, 3 * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(bias, part.data(), 3 * sizeof(float), cudaMemcpyDeviceToDevice),
            cudaSuccess);
  ASSERT_EQ(FoldPartials({.parts = {part.f32()},
                          .num_tokens = 1,
                          .dim = 3,
                          .bias = static_cast<float*>(bias),
                          .out = sum},
                         nullptr),
            cudaSuccess);
  EXPECT_EQ(sum.Read(), (std::vector<float>{2, 4, 6}));
  cudaFree(bias);
  const DeviceFloats out(out_type, 4);
  const FoldPartialsArgs three{.num_parts = 3, .num_tokens = 1, .dim = 4, .out = out};
  EXPECT_EQ(FoldPartials(three, nullptr), cudaErrorInvalidValue);
}

TEST_P(ElementwiseTest, AFoldMayAddToItsFirstPartAndNamesNoOtherTypeThanItsOutputs) {
  const auto [in, out_type, seed] = GetParam();
  const DeviceFloats total(DType::kF32, {1, 2, 3, 4, 5}), more(DType::kF32, {10, 20, 30, 40, 50});
  const FoldPartialsArgs add{.parts = {total.f32(), more.f32()},
                             .num_parts = 2,
                             .num_tokens = 1,
                             .dim = 5,
                             .out = total};
  ASSERT_EQ(FoldPartials(add, nullptr), cudaSuccess);
  EXPECT_EQ(total.Read(), (std::vector<float>{11, 22, 33, 44, 55}));
  const DeviceFloats copy(out_type, 5);
  FoldPartialsArgs round{.parts = {total.f32()}, .num_tokens = 1, .dim = 5, .out = copy};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    round.round_to = type;
    const bool fits = type == DType::kF32 || type == out_type;
    EXPECT_EQ(FoldPartials(round, nullptr), fits ? cudaSuccess : cudaErrorInvalidValue);
  }
  EXPECT_EQ(copy.Read(), Rounded(out_type, {11, 22, 33, 44, 55}));
}

TEST_P(ElementwiseTest, RoundsToTheTypeOfTheOutputAndNoOther) {
  const auto [in, out_type, seed] = GetParam();
  const DType other = out_type == DType::kF32 ? DType::kBF16 : DType::kF32;
  const DeviceFloats x(in, RandomFloats(seed, 8)), out(out_type, 4);
  EXPECT_EQ(Activation({x, 1, 4, ActivationKind::kRelu, other, out}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(ActivationAndMul({x, 1, 4, ActivationKind::kRelu, other, out}, nullptr),
            cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(Types, ElementwiseTest, testing::ValuesIn(DeviceCases()), NameOfCase);

class AdvanceStepTest : public DeviceTest {};

// In blocks of any size.
TEST_F(AdvanceStepTest, MovesRowsAndPaddingOn) {
  const std::vector<int32_t> sampled = {7, 8, 9}, lens = {30, 32, 70, 5};
  const std::vector<int32_t> tables = {2, 9, -1, 0, 1, -1, 3, 5, 6, -1, -1, -1};
  auto cpu = MakeTestKernels("portable");
  for (const auto& [size, expected] :
       {std::pair(32, std::vector<int64_t>{2 * 32 + 30, 1 * 32, 6 * 32 + 6, -1}),
        std::pair(24, std::vector<int64_t>{9 * 24 + 6, 1 * 24 + 8, 6 * 24 + 22, -1})}) {
    std::vector<int32_t> tokens(4, -5), positions(4, -5), cpu_lens = lens;
    std::vector<int64_t> slots(4, -5);
    const DeviceArray<int32_t> device_sampled(sampled), device_lens(lens), device_tables(tables);
    const DeviceArray<int32_t> device_tokens(tokens), device_positions(positions);
    const DeviceArray<int64_t> device_slots(slots);
    ASSERT_TRUE(cpu->AdvanceStep({4, 3, size, sampled.data(), tables.data(), 3, tokens.data(),
                                  positions.data(), cpu_lens.data(), slots.data()})
                    .ok());
    ASSERT_EQ(AdvanceStep({4, 3, size, device_sampled.data(), device_tables.data(), 3,
                           device_tokens.data(), device_positions.data(), device_lens.data(),
                           device_slots.data()},
                          nullptr),
              cudaSuccess);
    EXPECT_EQ(device_tokens.Read(), tokens);
    EXPECT_EQ(device_positions.Read(), positions);
    EXPECT_EQ(device_lens.Read(), cpu_lens);
    EXPECT_EQ(device_slots.Read(), slots);
    EXPECT_EQ(slots, expected);
  }
}

}  // namespace
}  // namespace baton::cuda
