#include <vector>

#include "tests/kernels/api/shapes_fixture.h"

namespace baton {
namespace {

TEST(CheckMoeShapesTest, LayersOfExpertsAreCheckedWithoutTheirMemory) {
  const MoeRoutingArgs routing{.logits = Nowhere<const float>(),
                               .logits_stride = 8,
                               .num_tokens = 3,
                               .num_experts = 8,
                               .top_k = 2,
                               .selection_bias = Nowhere<const float>(),
                               .expert_ids = Nowhere<int32_t>(),
                               .weights = Nowhere<float>()};
  ExpectRefused(routing, [](auto& a) { a.top_k = 9; }, "top_k = 9");
  const MoeAlignArgs align{.expert_ids = Nowhere<const int32_t>(),
                           .num_tokens = 3,
                           .top_k = 2,
                           .num_experts = 8,
                           .expert_map = Nowhere<const int32_t>(),
                           .num_local_experts = 4,
                           .row_order = Nowhere<int32_t>(),
                           .row_positions = Nowhere<int32_t>(),
                           .expert_offsets = Nowhere<int32_t>()};
  ExpectRefused(align, [](auto& a) { a.expert_map = nullptr; }, "num_local_experts = 4");
  std::vector<PackedMatrix> experts;
  for (int i = 0; i < 2; ++i) {
    experts.emplace_back(8, 4, DType::kBF16, WeightFormat::kCuda,
                         Buffer(Nowhere<std::byte>(), 64, nullptr));
  }
  const ExpertGemmArgs gemm{.a = Input(),
                            .a_stride = 4,
                            .num_a_rows = 3,
                            .row_order = Nowhere<const int32_t>(),
                            .expert_offsets = Nowhere<const int32_t>(),
                            .num_experts = 2,
                            .weights = experts.data(),
                            .out = Output(),
                            .out_stride = 8};
  ExpectRefused(gemm, [](auto& a) { a.expert_offsets = nullptr; }, "expert_offsets = null");
  ExpectRefused(gemm, [](auto& a) { a.a.dtype = DType::kFp8E4M3; }, "a.dtype");
  ExpectRefused(gemm, [](auto& a) { a.out.dtype = DType::kFp8E4M3; }, "out.dtype");
  const MoeCombineArgs combine{.y = Input(),
                               .y_stride = 8,
                               .num_rows = 6,
                               .expert_ids = Nowhere<const int32_t>(),
                               .row_positions = Nowhere<const int32_t>(),
                               .weights = Nowhere<const float>(),
                               .num_tokens = 3,
                               .top_k = 2,
                               .dim = 8,
                               .round_to = DType::kBF16,
                               .out = Output(),
                               .out_stride = 8};
  ExpectRefused(combine, [](auto& a) { a.y_stride = 7; }, "y_stride = 7");
  ExpectRounded(combine);
  ExpectRefused(combine, [](auto& a) { a.y.dtype = DType::kFp8E4M3; }, "y.dtype");
  ExpectRefused(combine, [](auto& a) { a.shared.dtype = DType::kFp8E4M3; }, "shared.dtype");
}

}  // namespace
}  // namespace baton
