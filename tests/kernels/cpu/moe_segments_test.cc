#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/moe_problem.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

// A layer of experts that ranks share, out of the operators. Each rank has of every expert some
// rows of gate and up and those columns of down, which are some of its segments. Of a segment the
// weighted outputs of a token's experts are added; then the segments are, as the tree of GemmArgs.
class MoeSegmentsTest : public KernelTest {
 protected:
  static constexpr int64_t kExperts = 4, kTopK = 3, kDim = 40, kFfn = 512, kTokens = 9;
  static constexpr int32_t kSegments = 8;
  static constexpr int64_t kSegment = kFfn / kSegments;

  void Fill(const ProductTypes& types) {
    types_ = types;
    x_ = Rounded(types.activations, RandomFloats(1, kTokens * kDim));
    down_ = Rounded(types.weights, RandomFloats(2, kExperts * kDim * kFfn));
    gate_up_bytes_ = Encode(types.weights, RandomFloats(3, kExperts * 2 * kFfn * kDim));
    down_bytes_ = Encode(types.weights, down_);
    const std::vector<float> logits = RandomFloats(4, kTokens * kExperts);
    ids_.resize(kTokens * kTopK);
    weights_.resize(kTokens * kTopK);
    order_.resize(kTokens * kTopK);
    positions_.resize(kTokens * kTopK);
    offsets_.resize(kExperts + 1);
    ASSERT_TRUE(kernels_->MoeRouting({.logits = logits.data(),
                                      .logits_stride = kExperts,
                                      .num_tokens = kTokens,
                                      .num_experts = kExperts,
                                      .top_k = kTopK,
                                      .expert_ids = ids_.data(),
                                      .weights = weights_.data()})
                    .ok());
    ASSERT_TRUE(kernels_->MoeAlign({.expert_ids = ids_.data(),
                                    .num_tokens = kTokens,
                                    .top_k = kTopK,
                                    .num_experts = kExperts,
                                    .num_local_experts = kExperts,
                                    .row_order = order_.data(),
                                    .row_positions = positions_.data(),
                                    .expert_offsets = offsets_.data()})
                    .ok());
  }

  std::vector<PackedMatrix> Pack(std::span<const WeightRows> parts, int64_t k, int64_t bytes_each) {
    std::vector<PackedMatrix> experts;
    std::vector<WeightRows> of_one(parts.begin(), parts.end());
    for (int64_t e = 0; e < kExperts; ++e) {
      experts.push_back(*kernels_->PackWeights(
          {.parts = of_one.data(), .num_parts = std::ssize(of_one), .k = k}));
      for (WeightRows& part : of_one) part.data += bytes_each;
    }
    return experts;
  }

  // [rows, ffn / size]: gate and up of a rank, activated.
  std::vector<float> Activated(int rank, int size) {
    const int64_t ffn = kFfn / size, bytes = SizeOf(types_.weights);
    const std::byte* const gate = gate_up_bytes_.data() + rank * ffn * kDim * bytes;
    const WeightRows parts[] = {{gate, types_.weights, ffn},
                                {gate + kFfn * kDim * bytes, types_.weights, ffn}};
    const std::vector<PackedMatrix> experts = Pack(parts, kDim, 2 * kFfn * kDim * bytes);
    std::vector<float> hidden(kTokens * kTopK * 2 * ffn), activated(kTokens * kTopK * ffn);
    EXPECT_TRUE(kernels_->ExpertGemm({.a = x_.data(),
                                      .a_stride = kDim,
                                      .num_a_rows = kTokens,
                                      .a_rounded_to = types_.activations,
                                      .row_order = order_.data(),
                                      .top_k = kTopK,
                                      .expert_offsets = offsets_.data(),
                                      .num_experts = kExperts,
                                      .weights = experts.data(),
                                      .out = hidden.data(),
                                      .out_stride = 2 * ffn})
                    .ok());
    EXPECT_TRUE(kernels_->ActivationAndMul({.gate_up = hidden.data(),
                                            .num_tokens = kTokens * kTopK,
                                            .dim = ffn,
                                            .round_to = types_.activations,
                                            .out = activated.data()})
                    .ok());
    return activated;
  }

  // [tokens, dim]: what a token's experts make of `count` segments of a rank's part of `down`, from
  // `first` on, as the tree.
  std::vector<float> Combined(const std::vector<float>& activated, int rank, int size,
                              int32_t first, int32_t count) {
    const int64_t ffn = kFfn / size, bytes = SizeOf(types_.weights), stride = kDim + 2;
    const WeightRows columns{down_bytes_.data() + rank * ffn * bytes, types_.weights, kDim, kFfn};
    const std::vector<PackedMatrix> experts =
        Pack(std::span(&columns, 1), ffn, kDim * kFfn * bytes);
    const int64_t rows = kTokens * kTopK, segment_stride = rows * stride + 3;
    std::vector<float> y(count * segment_stride, NAN), out(kTokens * kDim, NAN);
    EXPECT_TRUE(kernels_
                    ->ExpertGemm({.a = activated.data(),
                                  .a_stride = ffn,
                                  .num_a_rows = rows,
                                  .a_rounded_to = types_.activations,
                                  .expert_offsets = offsets_.data(),
                                  .num_experts = kExperts,
                                  .weights = experts.data(),
                                  .out = y.data(),
                                  .out_stride = stride,
                                  .segments = kSegments / size,
                                  .first_segment = first,
                                  .num_segments = count,
                                  .segment_stride = segment_stride})
                    .ok());
    EXPECT_TRUE(kernels_
                    ->MoeCombine({.y = y.data(),
                                  .y_stride = stride,
                                  .num_rows = rows,
                                  .segments = count,
                                  .segment_stride = segment_stride,
                                  .expert_ids = ids_.data(),
                                  .row_positions = positions_.data(),
                                  .weights = weights_.data(),
                                  .num_tokens = kTokens,
                                  .top_k = kTopK,
                                  .dim = kDim,
                                  .out = out.data(),
                                  .out_stride = kDim})
                    .ok());
    return out;
  }

  std::vector<float> Fold(const std::vector<std::vector<float>>& parts) {
    std::vector<float> out(kTokens * kDim, NAN);
    FoldPartialsArgs fold{.num_parts = static_cast<int32_t>(parts.size()),
                          .num_tokens = kTokens,
                          .dim = kDim,
                          .out = out.data()};
    for (size_t i = 0; i < parts.size(); ++i) fold.parts[i] = parts[i].data();
    EXPECT_TRUE(kernels_->FoldPartials(fold).ok());
    return out;
  }

  // As so many ranks, with so many segments at once.
  std::vector<float> Run(int size, int32_t at_once) {
    std::vector<std::vector<float>> of_ranks;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<float> activated = Activated(rank, size);
      std::vector<std::vector<float>> parts;
      for (int32_t s = 0; s < kSegments / size; s += at_once) {
        parts.push_back(Combined(activated, rank, size, s, at_once));
      }
      of_ranks.push_back(Fold(parts));
    }
    return Fold(of_ranks);
  }

  // One output of segments [first, first + count), by the definition.
  float Expected(const std::vector<float>& activated, int64_t token, int64_t j, int64_t first,
                 int64_t count) const {
    if (count > 1) {
      return Expected(activated, token, j, first, count / 2) +
             Expected(activated, token, j, first + count / 2, count / 2);
    }
    float sum = 0;
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      for (int64_t c = token * kTopK; c < (token + 1) * kTopK; ++c) {
        if (ids_[c] != expert) continue;
        const float y =
            SumOfProducts(kernels_->numerics(types_.activations),
                          activated.data() + positions_[c] * kFfn + first * kSegment,
                          down_.data() + (expert * kDim + j) * kFfn + first * kSegment, kSegment);
        sum = std::fma(weights_[c], y, sum);
      }
    }
    return sum;
  }

  ProductTypes types_;
  std::vector<float> x_, down_, weights_;
  std::vector<std::byte> gate_up_bytes_, down_bytes_;
  std::vector<int32_t> ids_, order_, positions_, offsets_;
};

TEST_P(MoeSegmentsTest, SegmentsAreCombinedEachAndThenFolded) {
  for (const ProductTypes& types : kProductTypes) {
    Fill(types);
    const std::vector<float> activated = Activated(0, 1), out = Run(1, kSegments);
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t j = 0; j < kDim; ++j) {
        ASSERT_EQ(out[token * kDim + j], Expected(activated, token, j, 0, kSegments))
            << token << ", " << j << " of " << ToString(types.weights);
      }
    }
  }
}

TEST_P(MoeSegmentsTest, EveryNumberOfRanksAndOfSegmentsAtOnceHasTheBitsOfOne) {
  for (const ProductTypes& types : kProductTypes) {
    Fill(types);
    const std::vector<float> one = Run(1, kSegments);
    for (const int size : {1, 2, 4, 8}) {
      for (int32_t at_once = 1; at_once <= kSegments / size; at_once *= 2) {
        EXPECT_EQ(Run(size, at_once), one) << size << " ranks, " << at_once << " segments at once";
      }
    }
  }
}

BATON_FOR_EACH_KERNEL_SET(MoeSegmentsTest);

}  // namespace
}  // namespace baton
