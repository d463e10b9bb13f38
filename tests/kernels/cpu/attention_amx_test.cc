#include "kernels/cpu/lane_math.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

class AttentionAmxTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto set = SelectKernelSet("x86_64_amx");
    if (!set.ok()) GTEST_SKIP() << set.status();
    kernels_ = MakeTestKernels("x86_64_amx", 2);
  }

  std::vector<float> Run(AttentionProblem& p) {
    GuardedFloats out(p.out_size());
    const absl::Status status = kernels_->VarlenAttention(p.Args(out.data()));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }

  std::unique_ptr<CpuKernels> kernels_;
};

// A row of the first sequence, which has at most one partial state of keys: the definition, with
// every sum in the order of the instruction.
std::vector<float> EmulatedRow(const AttentionProblem& p, int64_t i, int64_t head) {
  const AttentionShapes& shape = p.shape;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const int64_t num_keys = shape.sequences[0].second;
  const int64_t padded = (num_keys + kLanes - 1) / kLanes * kLanes;
  std::vector<float> probabilities(padded, -INFINITY), column(padded);
  float max = -INFINITY;
  for (int64_t j = 0; j < num_keys; ++j) {
    if (!p.Sees(0, i, j)) continue;
    const float* q = &p.q[(i * shape.heads + head) * shape.dim];
    const float* k = &p.k[(j * shape.kv_heads + kv_head) * shape.dim];
    probabilities[j] = SumOfProducts("cpu-amx.2", q, k, shape.dim) * shape.scores.scale;
    max = std::max(max, probabilities[j]);
  }
  Vec total = Zero();
  for (int64_t j = 0; j < padded; j += kLanes) {
    Store(&probabilities[j], ExpBounded(Load(&probabilities[j]) - Broadcast(max)));
    RoundRow(DType::kBF16, &probabilities[j], kLanes);
    total = total + Load(&probabilities[j]);
  }
  std::vector<float> out(shape.v_dim);
  for (int64_t d = 0; d < shape.v_dim; ++d) {
    for (int64_t j = 0; j < num_keys; ++j) {
      const float value = p.v[(j * shape.kv_heads + kv_head) * shape.v_dim + d];
      column[j] = p.Sees(0, i, j) ? value : 0;
    }
    out[d] = SumOfProducts("cpu-amx.2", probabilities.data(), column.data(), padded);
    out[d] = RoundTo(DType::kBF16, out[d] / SumLanes(total));
  }
  return out;
}

TEST_F(AttentionAmxTest, AddsScoresAndValuesInTheOrderOfTheInstruction) {
  for (const auto& [queries, keys] : {std::pair{1, 1}, {1, 77}, {9, 40}, {70, 129}, {37, 512}}) {
    for (const auto& [dim, v_dim] : {std::pair{8, 8}, {33, 24}, {64, 64}, {80, 112}, {256, 256}}) {
      for (const int32_t left : {-1, 19, 64}) {
        AttentionProblem p({.heads = 6,
                            .kv_heads = 2,
                            .dim = dim,
                            .kv = DType::kBF16,
                            .sequences = {{queries, keys}},
                            .scores = {.scale = 0.25f, .window_left = left},
                            .compute = DType::kBF16,
                            .v_dim = v_dim},
                           queries + keys);
        const std::vector<float> out = Run(p);
        for (int64_t row = 0; row < queries * 6; ++row) {
          ASSERT_EQ(std::vector<float>(&out[row * v_dim], &out[row * v_dim] + v_dim),
                    EmulatedRow(p, row / 6, row % 6))
              << queries << "x" << keys << " dim " << dim << "/" << v_dim << " left " << left
              << " row " << row;
        }
      }
    }
  }
}

TEST_F(AttentionAmxTest, AKeyThatARowDoesNotSeeDoesNotTouchItEvenIfNaN) {
  const int32_t n = 70, dim = 40;
  const std::vector<std::byte> nan = Encode(DType::kBF16, std::vector<float>(dim, NAN));
  const int64_t bytes = dim * 2;
  for (const int32_t heads : {1, 3, 4, 20}) {
    for (const auto& [left, right] : {std::pair{-1, 0}, {5, 0}, {40, 3}}) {
      const AttentionShapes shape{
          .heads = heads,
          .dim = dim,
          .block_size = 1,
          .kv = DType::kBF16,
          .sequences = {{n, n}},
          .scores = {.causal = right == 0, .window_left = left, .window_right = right},
          .compute = DType::kBF16};
      AttentionProblem clean(shape, 5);
      const std::vector<float> expected = Run(clean);
      for (const int32_t sick : {0, 15, 16, 31, 32, 33, 47, 63, 64, 69}) {
        AttentionProblem p(shape, 5);
        std::memcpy(&p.k_cache[p.table[sick] * bytes], nan.data(), bytes);
        std::memcpy(&p.v_cache[p.table[sick] * bytes], nan.data(), bytes);
        const std::vector<float> got = Run(p);
        for (int64_t row = 0; row < int64_t{n} * heads; ++row) {
          if (p.Sees(0, row / heads, sick)) {
            EXPECT_TRUE(std::isnan(got[row * dim])) << row;
          } else {
            ASSERT_EQ(std::memcmp(&got[row * dim], &expected[row * dim], dim * 4), 0)
                << heads << " heads, window " << left << ", key " << sick << ", row " << row;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton
