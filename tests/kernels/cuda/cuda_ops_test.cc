// What the operators of a device refuse: each by the name of the argument, and nothing is written.
#include "kernels/cuda/cuda_ops.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

constexpr int64_t kTokens = 3, kDim = 16;
constexpr auto kBF16 = DType::kBF16;

class CudaOpsTest : public CudaDeviceTest {
 protected:
  // Runs `args` as they are, which has to be legal, and then each spoiled: it is refused with a
  // message that begins with the field's name, and `out_` stays.
  template <typename Args>
  struct Spoiled {
    std::string field;
    std::function<void(Args&)> spoil;
  };
  template <typename Args>
  void ExpectNamed(absl::Status (ModelOps::*op)(const Args&), const Args& args,
                   const std::vector<Spoiled<Args>>& cases) {
    const absl::Status legal = (device_->ops().*op)(args);
    ASSERT_TRUE(legal.ok()) << legal;
    const auto before = out_.ReadBytes();
    for (const auto& [field, spoil] : cases) {
      Args spoiled = args;
      spoil(spoiled);
      const absl::Status status = (device_->ops().*op)(spoiled);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << field << ": " << status;
      EXPECT_EQ(status.message().substr(0, field.size() + 3), field + " = ") << status;
      EXPECT_TRUE(out_.ReadBytes() == before) << field;
    }
    // Nor is the device any worse for it.
    EXPECT_TRUE((device_->ops().*op)(args).ok());
  }

  const DeviceFloats x_{kBF16, RandomFloats(1, 4 * kTokens * kDim)};
  const DeviceFloats out_{kBF16, RandomFloats(2, 4 * kTokens * kDim)};
  const DeviceFloats f32_{DType::kF32, RandomFloats(3, 4 * kTokens * kDim)};
  const DeviceArray<int32_t> zeros_{std::vector<int32_t>(8)};
  const DeviceArray<int32_t> starts_{std::vector<int32_t>{0, 1, 2, 3}};
  const DeviceArray<int32_t> lens_{std::vector<int32_t>(3, 5)};
  const DeviceArray<int64_t> slots_{std::vector<int64_t>{0, 1, -1}};
};

TEST_F(CudaOpsTest, NormsNameWhatIsWrong) {
  const RmsNormArgs rms{.x = x_,
                        .x_stride = kDim,
                        .num_tokens = kTokens,
                        .dim = kDim,
                        .weight = f32_.f32(),
                        .round_to = kBF16,
                        .out = out_,
                        .out_stride = kDim};
  ExpectNamed<RmsNormArgs>(&ModelOps::RmsNorm, rms,
                           {{"x", [](auto& a) { a.x.data = nullptr; }},
                            {"weight", [](auto& a) { a.weight = nullptr; }},
                            {"out", [](auto& a) { a.out.data = nullptr; }},
                            {"num_tokens", [](auto& a) { a.num_tokens = INT64_MIN; }},
                            {"dim", [](auto& a) { a.dim = 0; }},
                            {"x_stride", [](auto& a) { a.x_stride = kDim - 1; }},
                            {"out_stride", [](auto& a) { a.out_stride = INT64_MAX; }},
                            {"eps", [](auto& a) { a.eps = -1; }},
                            {"out.dtype", [](auto& a) { a.out.dtype = DType::kF16; }}});
  const LayerNormArgs layer{.x = x_,
                            .x_stride = kDim,
                            .num_tokens = kTokens,
                            .dim = kDim,
                            .weight = f32_.f32(),
                            .round_to = kBF16,
                            .out = out_,
                            .out_stride = kDim};
  ExpectNamed<LayerNormArgs>(&ModelOps::LayerNorm, layer,
                             {{"x", [](auto& a) { a.x.data = nullptr; }},
                              {"weight", [](auto& a) { a.weight = nullptr; }},
                              {"out", [](auto& a) { a.out.data = nullptr; }},
                              {"x_stride", [](auto& a) { a.x_stride = 0; }},
                              {"out_stride", [](auto& a) { a.out_stride = -1; }}});
}

TEST_F(CudaOpsTest, ProductsNameWhatIsWrong) {
  const PackedMatrix weights = DeviceMatrix(kBF16, RandomFloats(4, kDim * kDim), kDim, kDim);
  const PackedMatrix none(kDim, kDim, kBF16, WeightFormat::kCuda, Buffer());
  const GemmArgs args{.a = x_,
                      .a_stride = kDim,
                      .m = kTokens,
                      .weights = &weights,
                      .out = out_,
                      .out_stride = kDim};
  ExpectNamed<GemmArgs>(&ModelOps::Gemm, args,
                        {{"a", [](auto& a) { a.a.data = nullptr; }},
                         {"weights", [](auto& a) { a.weights = nullptr; }},
                         {"weights.data", [&](auto& a) { a.weights = &none; }},
                         {"out", [](auto& a) { a.out.data = nullptr; }},
                         {"m", [](auto& a) { a.m = -1; }},
                         {"segments", [](auto& a) { a.segments = 3; }},
                         {"a_stride", [](auto& a) { a.a_stride = kDim - 1; }},
                         {"out_stride", [](auto& a) { a.out_stride = INT32_MIN; }}});
  // Of segments whose sums have no room for one row.
  constexpr int64_t kWide = (int64_t{1} << 30) / sizeof(float) / 8 + 1;
  const PackedMatrix wide(kWide, 256, kBF16, WeightFormat::kCuda,
                          Allocate(8, MemoryKind::kDevice));
  GemmArgs segments = args;
  segments.a_stride = 257;  // Of rows that no form of sm_90a takes: those need no room.
  segments.m = 1;
  segments.weights = &wide;
  segments.segments = 8;
  segments.out_stride = kWide;
  EXPECT_EQ(device_->ops().Gemm(segments),
            absl::ResourceExhaustedError("Gemm: out of GPU memory"));
  const EmbeddingArgs embedding{.shards = {&weights},
                                .tokens = zeros_.data(),
                                .num_tokens = kTokens,
                                .out = out_};
  ExpectNamed<EmbeddingArgs>(&ModelOps::Embedding, embedding,
                             {{"tokens", [](auto& a) { a.tokens = nullptr; }},
                              {"out", [](auto& a) { a.out.data = nullptr; }},
                              {"out_stride", [](auto& a) { a.out_stride = 1; }},
                              {"num_shards", [](auto& a) { a.num_shards = 9; }}});
}

TEST_F(CudaOpsTest, OperatorsOfExpertsNameWhatIsWrong) {
  const DeviceArray<int32_t> ids{std::vector<int32_t>(6)}, order{std::vector<int32_t>(6)};
  const MoeRoutingArgs routing{.logits = f32_.f32(),
                               .logits_stride = 4,
                               .num_tokens = kTokens,
                               .num_experts = 4,
                               .top_k = 2,
                               .expert_ids = ids.data(),
                               .weights = f32_.f32() + 32};
  ExpectNamed<MoeRoutingArgs>(&ModelOps::MoeRouting, routing,
                              {{"logits", [](auto& a) { a.logits = nullptr; }},
                               {"weights", [](auto& a) { a.weights = nullptr; }},
                               {"num_experts", [](auto& a) { a.num_experts = 1025; }},
                               {"top_k", [](auto& a) { a.top_k = 5; }},
                               {"logits_stride", [](auto& a) { a.logits_stride = 3; }}});
  const MoeAlignArgs align{.expert_ids = zeros_.data(),
                           .num_tokens = kTokens,
                           .top_k = 2,
                           .num_experts = 4,
                           .num_local_experts = 4,
                           .row_order = order.data(),
                           .row_positions = ids.data(),
                           .expert_offsets = starts_.data()};
  ExpectNamed<MoeAlignArgs>(&ModelOps::MoeAlign, align,
                            {{"expert_ids", [](auto& a) { a.expert_ids = nullptr; }},
                             {"expert_offsets", [](auto& a) { a.expert_offsets = nullptr; }},
                             {"num_tokens", [](auto& a) { a.num_tokens = INT32_MAX; }},
                             {"num_local_experts", [](auto& a) { a.num_local_experts = 3; }}});
  const MoeCombineArgs combine{.y = f32_,
                               .y_stride = kDim,
                               .num_rows = 6,
                               .expert_ids = zeros_.data(),
                               .row_positions = zeros_.data(),
                               .weights = f32_.f32(),
                               .num_tokens = kTokens,
                               .top_k = 2,
                               .dim = kDim,
                               .round_to = kBF16,
                               .out = out_,
                               .out_stride = kDim};
  ExpectNamed<MoeCombineArgs>(&ModelOps::MoeCombine, combine,
                              {{"y", [](auto& a) { a.y.data = nullptr; }},
                               {"out", [](auto& a) { a.out.data = nullptr; }},
                               {"y_stride", [](auto& a) { a.y_stride = kDim - 1; }},
                               {"out_stride", [](auto& a) { a.out_stride = 0; }}});
}

TEST_F(CudaOpsTest, ProductsOfExpertsNameWhatIsWrong) {
  const DeviceArray<int32_t> offsets{std::vector<int32_t>{0, 1, 3}};
  PackedMatrix weights[2], of_cpu[2], of_one[2];
  for (int e = 0; e < 2; ++e) {
    weights[e] = DeviceMatrix(kBF16, RandomFloats(4, kDim * kDim), kDim, kDim);
    const PackedMatrix& w = weights[e];
    of_cpu[e] = PackedMatrix(kDim, kDim, kBF16, WeightFormat::kCpuPanels,
                             Buffer(w.data(), w.size_bytes(), nullptr));
    of_one[e] = PackedMatrix(kDim + e, kDim, kBF16, WeightFormat::kCuda,
                             Buffer(w.data(), w.size_bytes(), nullptr));
  }
  const ExpertGemmArgs args{.a = x_,
                            .a_stride = kDim,
                            .num_a_rows = kTokens,
                            .expert_offsets = offsets.data(),
                            .num_experts = 2,
                            .weights = weights,
                            .out = out_,
                            .out_stride = kDim};
  ExpectNamed<ExpertGemmArgs>(&ModelOps::ExpertGemm, args,
                              {{"a", [](auto& a) { a.a.data = nullptr; }},
                               {"out", [](auto& a) { a.out.data = nullptr; }},
                               {"weights", [](auto& a) { a.weights = nullptr; }},
                               {"weights[1].n", [&](auto& a) { a.weights = of_one; }},
                               {"expert_offsets", [](auto& a) { a.expert_offsets = nullptr; }},
                               {"num_a_rows", [](auto& a) { a.num_a_rows = INT64_MAX; }},
                               {"num_experts", [](auto& a) { a.num_experts = 1025; }},
                               {"a_stride", [](auto& a) { a.a_stride = kDim - 1; }},
                               {"out_stride", [](auto& a) { a.out_stride = kDim - 1; }},
                               {"segments", [](auto& a) { a.segments = 3; }},
                               {"num_segments", [](auto& a) { a.num_segments = 2; }}});
  ExpertGemmArgs spoiled = args;
  spoiled.weights = of_cpu;
  EXPECT_EQ(device_->ops().ExpertGemm(spoiled).message(),
            "weights: must be weights that this device has packed");
  // As many rows as 32 bits can number, of which the experts have three.
  const DeviceArray<int32_t> order{std::vector<int32_t>{2, 0, 1}};
  spoiled = args;
  spoiled.row_order = order.data();
  spoiled.top_k = INT64_MAX;
  EXPECT_EQ(device_->ops().ExpertGemm(spoiled).message(), "num_a_rows = 3: must be in [0, 0]");
}

TEST_F(CudaOpsTest, OperatorsOfElementsNameWhatIsWrong) {
  const RopeArgs rope{.x = out_,
                      .x_stride = kDim,
                      .num_tokens = kTokens,
                      .num_heads = 1,
                      .head_dim = kDim,
                      .rotary_dim = kDim,
                      .cos = f32_.f32(),
                      .sin = f32_.f32()};
  ExpectNamed<RopeArgs>(&ModelOps::Rope, rope,
                        {{"x", [](auto& a) { a.x.data = nullptr; }},
                         {"cos", [](auto& a) { a.cos = nullptr; }},
                         {"sin", [](auto& a) { a.sin = nullptr; }},
                         {"rotary_dim", [](auto& a) { a.rotary_dim = kDim + 2; }},
                         {"x_stride", [](auto& a) { a.x_stride = kDim - 1; }}});
  const ActivationAndMulArgs gated{.gate_up = x_,
                                   .num_tokens = kTokens,
                                   .dim = kDim,
                                   .round_to = kBF16,
                                   .out = out_};
  ExpectNamed<ActivationAndMulArgs>(&ModelOps::ActivationAndMul, gated,
                                    {{"gate_up", [](auto& a) { a.gate_up.data = nullptr; }},
                                     {"out", [](auto& a) { a.out.data = nullptr; }},
                                     {"gate_up_stride", [](auto& a) { a.gate_up_stride = kDim; }},
                                     {"dim", [](auto& a) { a.dim = INT64_MIN; }}});
  const SelectRowsArgs select{.from = x_,
                              .from_stride = kDim,
                              .rows = zeros_.data(),
                              .num_rows = kTokens,
                              .dim = kDim,
                              .to = out_,
                              .to_stride = kDim};
  ExpectNamed<SelectRowsArgs>(&ModelOps::SelectRows, select,
                              {{"from", [](auto& a) { a.from.data = nullptr; }},
                               {"rows", [](auto& a) { a.rows = nullptr; }},
                               {"to", [](auto& a) { a.to.data = nullptr; }},
                               {"to_stride", [](auto& a) { a.to_stride = 1; }}});
}

// What a kernel of its own does not serve: the operators apart do, with the same bits.
TEST_F(CudaOpsTest, GatedProductsDoWithAndWithoutAKernelOfTheirOwn) {
  const PackedMatrix weights =
      DeviceMatrix(kBF16, RandomFloats(4, 2 * kDim * kDim), 2 * kDim, kDim);
  const DeviceFloats between(kBF16, kTokens * 2 * kDim);
  const auto gated = [&](Floats product_out) {
    const GatedGemmArgs args{.product = {.a = x_,
                                         .a_stride = kDim,
                                         .m = kTokens,
                                         .weights = &weights,
                                         .out = product_out,
                                         .out_stride = 2 * kDim},
                             .round_to = kBF16,
                             .out = out_};
    ExpectNamed<GatedGemmArgs>(&ModelOps::GatedGemm, args,
                               {{"a", [](auto& a) { a.product.a.data = nullptr; }},
                                {"out", [](auto& a) { a.out.data = nullptr; }},
                                {"out_stride", [](auto& a) { a.out_stride = kDim - 1; }}});
    return out_.Read();
  };
  const auto of_f32 = gated(f32_);  // Nothing is rounded in between.
  const auto got = gated(between);
  EXPECT_NE(got, of_f32);
  GemmArgs product{.a = x_,
                   .a_stride = kDim,
                   .m = kTokens,
                   .weights = &weights,
                   .out = between,
                   .out_stride = 2 * kDim};
  ASSERT_TRUE(device_->ops().Gemm(product).ok());
  ASSERT_TRUE(device_->ops()
                  .ActivationAndMul({.gate_up = between,
                                     .num_tokens = kTokens,
                                     .dim = kDim,
                                     .round_to = kBF16,
                                     .out = out_})
                  .ok());
  EXPECT_EQ(out_.Read(), got);
}

// In f32 the operators apart do it: what is rounded once at the end is the same.
TEST_F(CudaOpsTest, RotationsIntoACacheDoWithAndWithoutAKernelOfTheirOwn) {
  CachePlane plane{
      .num_blocks = 2, .num_heads = 1, .block_size = 2, .dim = kDim, .block_stride = 2 * kDim};
  const auto written = [&](DType dtype) {
    const DeviceFloats rows(dtype, Rounded(kBF16, RandomFloats(5, 3 * kTokens * kDim)));
    const Floats all = rows;
    plane.dtype = dtype;
    const DeviceFloats keys(dtype, 4 * kDim), values(dtype, 4 * kDim);
    RopeAndCacheArgs args{.q = all.At(2 * kDim),
                          .q_stride = 3 * kDim,
                          .num_heads = 1,
                          .key = all,
                          .key_stride = 3 * kDim,
                          .value = all.At(kDim),
                          .value_stride = 3 * kDim,
                          .num_tokens = kTokens,
                          .rotary_dim = 8,
                          .cos = f32_.f32(),
                          .sin = f32_.f32(),
                          .slot_mapping = slots_.data(),
                          .k_cache = plane,
                          .v_cache = plane};
    args.k_cache.data = static_cast<std::byte*>(keys.data());
    args.v_cache.data = static_cast<std::byte*>(values.data());
    EXPECT_TRUE(device_->ops().RopeAndCache(args).ok());
    std::vector<float> got;
    const auto queries = rows.Read();
    for (const auto& part :
         {keys.Read(), values.Read(), {queries.begin() + 2 * kDim, queries.begin() + 3 * kDim}}) {
      for (const float x : Rounded(kBF16, part)) got.push_back(std::isnan(x) ? -1 : x);
    }
    return got;
  };
  EXPECT_EQ(written(kBF16), written(DType::kF32));
}

TEST_F(CudaOpsTest, WritesToACacheNameWhatIsWrong) {
  ReshapeAndCacheArgs args{.key = x_,
                           .key_stride = kDim,
                           .value = x_,
                           .value_stride = kDim,
                           .slot_mapping = slots_.data(),
                           .num_tokens = kTokens};
  args.k_cache = {.data = static_cast<std::byte*>(out_.data()),
                  .dtype = kBF16,
                  .num_blocks = 1,
                  .num_heads = 1,
                  .block_size = 2,
                  .dim = kDim,
                  .block_stride = 2 * kDim};
  args.v_cache = args.k_cache;
  args.v_cache.data += 2 * kDim * 2;
  ExpectNamed<ReshapeAndCacheArgs>(
      &ModelOps::ReshapeAndCache, args,
      {{"key", [](auto& a) { a.key.data = nullptr; }},
       {"value", [](auto& a) { a.value.data = nullptr; }},
       {"slot_mapping", [](auto& a) { a.slot_mapping = nullptr; }},
       {"k_cache.data", [](auto& a) { a.k_cache.data = nullptr; }},
       {"v_cache.data", [](auto& a) { a.v_cache.data = nullptr; }},
       {"key_stride", [](auto& a) { a.key_stride = kDim - 1; }},
       {"value_stride", [](auto& a) { a.value_stride = 0; }},
       {"k_cache.block_stride", [](auto& a) { a.k_cache.block_stride = 2 * kDim - 1; }},
       {"k_cache.num_scales", [](auto& a) { a.k_cache.num_scales = 1; }},
       {"v_cache.num_blocks", [](auto& a) { a.v_cache.num_blocks = 2; }}});
}

TEST_F(CudaOpsTest, AttentionNamesWhatIsWrongAndServesWhatIsToldTooLarge) {
  VarlenAttentionArgs args{.q = x_,
                           .q_stride = kDim,
                           .num_heads = 1,
                           .num_seqs = 3,
                           .cu_seqlens_q = starts_.data(),
                           .num_tokens = kTokens,
                           .max_seqlen_q = 1,
                           .seq_lens = lens_.data(),
                           .max_seqlen_k = 5,
                           .block_table = zeros_.data(),
                           .max_blocks = 1,
                           .round_to = kBF16,
                           .out = out_,
                           .out_stride = kDim};
  args.k_cache = {.data = static_cast<std::byte*>(x_.data()),
                  .dtype = kBF16,
                  .num_blocks = 1,
                  .num_heads = 1,
                  .block_size = 8,
                  .dim = kDim,
                  .block_stride = 8 * kDim};
  args.v_cache = args.k_cache;
  ExpectNamed<VarlenAttentionArgs>(&ModelOps::VarlenAttention, args,
                                   {{"q", [](auto& a) { a.q.data = nullptr; }},
                                    {"out", [](auto& a) { a.out.data = nullptr; }},
                                    {"cu_seqlens_q", [](auto& a) { a.cu_seqlens_q = nullptr; }},
                                    {"seq_lens", [](auto& a) { a.seq_lens = nullptr; }},
                                    {"block_table", [](auto& a) { a.block_table = nullptr; }},
                                    {"num_tokens", [](auto& a) { a.num_tokens = 0; }},
                                    {"max_seqlen_q", [](auto& a) { a.max_seqlen_q = 0; }},
                                    {"max_seqlen_k", [](auto& a) { a.max_seqlen_k = 0; }},
                                    {"q", [](auto& a) { a.q = a.q.At(1); }},
                                    {"q_stride", [](auto& a) { a.q_stride = kDim - 1; }},
                                    {"q_stride", [](auto& a) { a.q_stride = kDim + 4; }},
                                    {"out_stride", [](auto& a) { a.out_stride = 8; }},
                                    {"num_heads", [](auto& a) { a.num_heads = 0; }},
                                    {"k_cache.data", [](auto& a) { a.k_cache.data = nullptr; }},
                                    {"v_cache.dim", [](auto& a) { a.v_cache.dim = 1 << 20; }}});
  // What the engine does not ask is another kernel's, which knows no more rows than a grid has.
  VarlenAttentionArgs scaled = args;
  scaled.scales.output_scale = 2;
  EXPECT_TRUE(device_->ops().VarlenAttention(scaled).ok());
  scaled.num_tokens = int64_t{INT32_MAX} + 1;
  EXPECT_EQ(device_->ops().VarlenAttention(scaled).message(),
            "num_tokens = 2147483648: must be on a GPU at most 2147483647");
  EXPECT_TRUE(device_->ops().VarlenAttention(args).ok());
  const auto expected = out_.ReadBytes();
  // No grid has as many blocks as such lengths might take.
  for (const int32_t keys : {40'000'000, std::numeric_limits<int32_t>::max()}) {
    args.max_seqlen_k = keys;
    args.max_seqlen_q = keys == 40'000'000 ? 1 : keys;
    const absl::Status status = device_->ops().VarlenAttention(args);
    EXPECT_TRUE(status.ok()) << keys << ": " << status;
    EXPECT_TRUE(out_.ReadBytes() == expected) << keys;
  }
}

}  // namespace
}  // namespace baton::cuda
