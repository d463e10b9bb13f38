#include "kernels/api/check_shapes.h"

#include "tests/kernels/api/shapes_fixture.h"

namespace baton {
namespace {

const PackedMatrix& DeviceMatrix() {
  static const PackedMatrix matrix(40, 24, DType::kBF16, WeightFormat::kCuda,
                                   Buffer(Nowhere<std::byte>(), 40 * 24 * 2, nullptr));
  return matrix;
}

TEST(CheckShapesTest, NormsAreCheckedWithoutTheirMemory) {
  const RmsNormArgs norm{.x = Input(),
                         .x_stride = 24,
                         .num_tokens = 3,
                         .dim = 24,
                         .weight = Nowhere<const float>(),
                         .residual = Nowhere<float>(),
                         .round_to = DType::kBF16,
                         .out = Output(),
                         .out_stride = 24};
  ExpectRefused(norm, [](auto& a) { a.x_stride = 23; }, "x_stride = 23: must be at least 24");
  ExpectRefused(norm, [](auto& a) { a.residual_stride = 1; }, "residual_stride = 1");
  ExpectRefused(norm, [](auto& a) { a.x.dtype = DType::kFp8E4M3; },
                "x.dtype = fp8_e4m3: must be f32, f16 or bf16");
  ExpectRounded(norm);
  const LayerNormArgs layer{.x = Input(),
                            .x_stride = 24,
                            .num_tokens = 3,
                            .dim = 24,
                            .weight = Nowhere<const float>(),
                            .bias = Nowhere<const float>(),
                            .round_to = DType::kBF16,
                            .out = Output(),
                            .out_stride = 24};
  ExpectRefused(layer, [](auto& a) { a.weight = nullptr; }, "weight = null");
  ExpectRefused(layer, [](auto& a) { a.x.dtype = DType::kFp8E5M2; }, "x.dtype = fp8_e5m2");
  ExpectRounded(layer);
}

// One truth about an output: it lies in the type that it is rounded to, or as floats.
TEST(CheckShapesTest, AnOutputLiesInWhatItIsRoundedTo) {
  const ActivationArgs args{.x = Input(DType::kF32),
                            .num_tokens = 1,
                            .dim = 4,
                            .round_to = DType::kBF16,
                            .out = Output(DType::kF32)};
  ExpectAllowed(args);
  ExpectRefused(args, [](auto& a) { a.out.dtype = DType::kF16; },
                "out.dtype = f16: must be f32 or round_to, bf16");
  ExpectRefused(args, [](auto& a) { a.round_to = DType::kFp8E4M3; },
                "round_to = 3: must be f32, f16 or bf16");
  ActivationArgs halves = args;
  halves.out.dtype = DType::kBF16;
  ExpectAllowed(halves);
  ExpectRounded(halves);
  ExpectRefused(args, [](auto& a) { a.x.dtype = DType::kFp8E4M3; }, "x.dtype = fp8_e4m3");
  const ActivationAndMulArgs gated{.gate_up = Input(),
                                   .num_tokens = 1,
                                   .dim = 4,
                                   .round_to = DType::kBF16,
                                   .out = Output()};
  ExpectRefused(gated, [](auto& a) { a.round_to = DType::kF32; }, "out.dtype = bf16");
  ExpectRefused(gated, [](auto& a) { a.gate_up.dtype = DType::kFp8E4M3; }, "gate_up.dtype");
  ExpectRefused(gated, [](auto& a) { a.gate_up_stride = 7; }, "gate_up_stride = 7");
}

TEST(CheckShapesTest, RotationsAndRowsAreCheckedWithoutTheirMemory) {
  const RopeArgs rope{.x = Output(),
                      .x_stride = 16,
                      .num_tokens = 2,
                      .num_heads = 2,
                      .head_dim = 8,
                      .rotary_dim = 8,
                      .cos = Nowhere<const float>(),
                      .sin = Nowhere<const float>()};
  ExpectRefused(rope, [](auto& a) { a.rotary_dim = 10; }, "rotary_dim = 10");
  ExpectRefused(rope, [](auto& a) { a.x.dtype = DType::kFp8E4M3; }, "x.dtype");
  const RotaryTableArgs table{.positions = Nowhere<const int32_t>(),
                              .num_tokens = 2,
                              .inv_freq = Nowhere<const float>(),
                              .half = 4,
                              .cos = Nowhere<float>(),
                              .sin = Nowhere<float>()};
  ExpectRefused(table, [](auto& a) { a.positions = nullptr; }, "positions = null");
  ExpectRefused(table, [](auto& a) { a.half = -1; }, "half = -1");
  const SelectRowsArgs rows{.from = Input(),
                            .from_stride = 8,
                            .rows = Nowhere<const int32_t>(),
                            .num_rows = 2,
                            .dim = 8,
                            .to = Output(),
                            .to_stride = 8};
  ExpectRefused(rows, [](auto& a) { a.to.dtype = DType::kF32; }, "to.dtype = 0: must be that");
  ExpectRefused(rows, [](auto& a) { a.to_stride = 7; }, "to_stride = 7");
  const SoftcapArgs softcap{.x = Output(), .x_stride = 8, .num_tokens = 1, .dim = 8, .cap = 30};
  ExpectRefused(softcap, [](auto& a) { a.cap = 0; }, "cap = 0");
  ExpectRefused(softcap, [](auto& a) { a.x.dtype = DType::kFp8E4M3; }, "x.dtype");
}

TEST(CheckShapesTest, OperatorsInOneAreCheckedAsThoseThatTheyAreOf) {
  const RopeAndCacheArgs cache{.q = Output(),
                               .q_stride = 24,
                               .num_heads = 3,
                               .key = Output(),
                               .key_stride = 16,
                               .value = Input(),
                               .value_stride = 16,
                               .num_tokens = 2,
                               .rotary_dim = 8,
                               .cos = Nowhere<const float>(),
                               .sin = Nowhere<const float>(),
                               .slot_mapping = Nowhere<const int64_t>(),
                               .k_cache = DevicePlane(),
                               .v_cache = DevicePlane()};
  ExpectRefused(cache, [](auto& a) { a.q_stride = 23; }, "q_stride = 23: must be at least 24");
  ExpectRefused(cache, [](auto& a) { a.num_heads = 0; }, "num_heads = 0");
  ExpectRefused(cache, [](auto& a) { a.q.dtype = DType::kFp8E4M3; }, "q.dtype");
  ExpectRefused(cache, [](auto& a) { a.key_stride = 15; }, "key_stride = 15");
  ExpectRefused(cache, [](auto& a) { a.value_stride = 15; }, "value_stride = 15");
  ExpectRefused(cache, [](auto& a) { a.cos = nullptr; }, "cos = null");
  ExpectRefused(cache, [](auto& a) { a.sin = nullptr; }, "sin = null");
  ExpectRefused(cache, [](auto& a) { a.rotary_dim = 10; }, "rotary_dim = 10");
  ExpectRefused(cache, [](auto& a) { a.slot_mapping = nullptr; }, "slot_mapping = null");
  RopeAndCacheArgs plain = cache;  // Without queries, and nothing is rotated.
  plain.q = {};
  plain.num_heads = plain.q_stride = plain.rotary_dim = 0;
  plain.cos = plain.sin = nullptr;
  ExpectAllowed(plain);

  const GatedGemmArgs gated{.product = {.a = Input(),
                                        .a_stride = 24,
                                        .m = 3,
                                        .weights = &DeviceMatrix(),
                                        .out = Output(),
                                        .out_stride = 40},
                            .round_to = DType::kBF16,
                            .out = Output()};
  ExpectRefused(gated, [](auto& a) { a.product.num_rows = 39; }, "product.n = 39: must be even");
  ExpectRefused(gated, [](auto& a) { a.product.a_stride = 23; }, "a_stride = 23");
  ExpectRefused(gated, [](auto& a) { a.out_stride = 19; }, "out_stride = 19: must be at least 20");
  ExpectRefused(gated, [](auto& a) { a.out.data = nullptr; }, "out = null");
  ExpectRounded(gated);

  const GemmAndNormArgs norm{.product = {.a = Input(),
                                         .a_stride = 24,
                                         .m = 3,
                                         .weights = &DeviceMatrix(),
                                         .out = Output(DType::kF32),
                                         .out_stride = 40},
                             .weight = Nowhere<const float>(),
                             .residual = Nowhere<float>(),
                             .residual_stride = 40,
                             .round_to = DType::kBF16,
                             .out = Output(),
                             .out_stride = 40};
  ExpectRefused(norm, [](auto& a) { a.product.a_stride = 23; }, "a_stride = 23");
  ExpectRefused(norm, [](auto& a) { a.residual = nullptr; }, "residual = null");
  ExpectRefused(norm, [](auto& a) { a.residual_stride = 39; }, "residual_stride = 39");
  ExpectRefused(norm, [](auto& a) { a.weight = nullptr; }, "weight = null");
  ExpectRefused(norm, [](auto& a) { a.out_stride = 39; }, "out_stride = 39");
  ExpectRounded(norm);
}

TEST(CheckShapesTest, ProductsAndTablesAreCheckedWithoutTheirMemory) {
  const GemmArgs gemm{.a = Input(),
                      .a_stride = 24,
                      .m = 3,
                      .weights = &DeviceMatrix(),
                      .bias = Nowhere<const float>(),
                      .out = Output(DType::kF32),
                      .out_stride = 40};
  ExpectRefused(gemm, [](auto& a) { a.out_stride = 39; }, "out_stride = 39: must be at least 40");
  ExpectRefused(gemm, [](auto& a) { a.a.dtype = DType::kFp8E4M3; }, "a.dtype");
  ExpectRefused(gemm, [](auto& a) { a.out.dtype = DType::kFp8E4M3; }, "out.dtype");
  for (const int32_t segments : {-2, 0, 3, 16}) {
    ExpectRefused(gemm, [=](auto& a) { a.segments = segments; },
                  absl::StrCat("segments = ", segments, ": must be 1, 2, 4 or 8"));
  }
  ExpectRefused(gemm, [](auto& a) { a.segments = 2; },
                "segments = 2: must be 1, or each of a multiple of 32 of weights.k = 24");
  for (const int64_t first : {-32, 8, 64}) {
    ExpectRefused(
        gemm, [=](auto& a) { a.first_row = first; },
        absl::StrCat("first_row = ", first, ": must be a multiple of 32 in [0, 40)"));
  }
  ExpectRefused(gemm, [](auto& a) { a.num_rows = 41; }, "num_rows = 41: must be in [0, 40]");
  ExpectRefused(
      gemm, [](auto& a) { a.first_row = 32, a.num_rows = 9; }, "num_rows = 9: must be in [0, 8]");
  GemmArgs some = gemm;
  some.first_row = 32;
  some.out_stride = 8;
  ExpectRefused(some, [](auto& a) { a.out_stride = 7; }, "out_stride = 7: must be at least 8");
  const EmbeddingArgs embedding{.shards = {&DeviceMatrix()},
                                .tokens = Nowhere<const int32_t>(),
                                .num_tokens = 3,
                                .out = Output(DType::kF32)};
  ExpectRefused(embedding, [](auto& a) { a.out_stride = 23; }, "out_stride = 23");
  ExpectRefused(embedding, [](auto& a) { a.out.dtype = DType::kFp8E4M3; }, "out.dtype");
  ExpectRefused(embedding, [](auto& a) { a.shards[0] = nullptr; }, "shards[0] = null");
  for (const int32_t shards : {0, 9}) {
    ExpectRefused(embedding, [=](auto& a) { a.num_shards = shards; },
                  absl::StrCat("num_shards = ", shards, ": must be in [1, 8]"));
  }
  const WeightRows part{Nowhere<const std::byte>(), DType::kBF16, 40};
  const PackWeightsArgs pack{.parts = &part, .num_parts = 1, .k = 24};
  ExpectRefused(pack, [](auto& a) { a.k = 0; }, "k = 0");
  const WeightRows narrow{Nowhere<const std::byte>(), DType::kBF16, 40, 23};
  ExpectRefused(pack, [&](auto& a) { a.parts = &narrow; }, "parts[0].row_stride = 23: must be at");
}

TEST(CheckShapesTest, ATableIsOfPartsOfOneWidthAndTypeCutAtEqualRows) {
  const auto matrix = [](int64_t n, int64_t k, DType dtype) {
    return PackedMatrix(n, k, dtype, WeightFormat::kCuda, *AllocateHost(64));
  };
  const PackedMatrix whole = matrix(5, 8, DType::kBF16), wide = matrix(5, 9, DType::kBF16);
  const PackedMatrix last = matrix(3, 8, DType::kBF16), f16 = matrix(5, 8, DType::kF16);
  const EmbeddingArgs args{.shards = {&whole, &whole, &last},
                           .num_shards = 3,
                           .rows_each = 5,
                           .tokens = Nowhere<const int32_t>(),
                           .num_tokens = 3,
                           .out = Output(DType::kF32)};
  EXPECT_EQ(args.num_rows(), 13);
  ExpectRefused(args, [&](auto& a) { a.shards[2] = nullptr; }, "shards[2] = null");
  ExpectRefused(args, [&](auto& a) { a.shards[2] = &wide; }, "shards[2].k = 9: must be that of");
  ExpectRefused(args, [&](auto& a) { a.shards[1] = &f16; }, "shards[1].dtype = 1: must be that");
  ExpectRefused(args, [&](auto& a) { a.shards[1] = &last; }, "shards[1].n = 3: must be in [5, 5]");
  ExpectRefused(args, [&](auto& a) { a.rows_each = 4; }, "shards[0].n = 5: must be in [4, 4]");
  ExpectRefused(args, [&](auto& a) { a.rows_each = 0; }, "rows_each = 0: must be at least 1");
  ExpectRefused(args, [&](auto& a) { a.out_stride = 7; }, "out_stride = 7: must be at least 8");
}

TEST(CheckShapesTest, PartialsAreCheckedWithoutTheirMemory) {
  const float* part = Nowhere<const float>();
  const FoldPartialsArgs fold{.parts = {part, part, part, part},
                              .num_parts = 4,
                              .num_tokens = 2,
                              .dim = 8,
                              .bias = part,
                              .out = Output(DType::kF32)};
  for (const int32_t parts : {0, 3, 16}) {
    ExpectRefused(fold, [=](auto& a) { a.num_parts = parts; },
                  absl::StrCat("num_parts = ", parts, ": must be 1, 2, 4 or 8"));
  }
  ExpectRefused(fold, [](auto& a) { a.num_parts = 8; }, "parts[4] = null");
  ExpectRefused(fold, [](auto& a) { a.num_tokens = -1; }, "num_tokens = -1");
  ExpectRefused(fold, [](auto& a) { a.dim = 0; }, "dim = 0: must be at least 1");
  ExpectRefused(fold, [](auto& a) { a.out.data = nullptr; }, "out = null");
  ExpectRefused(fold, [](auto& a) { a.out.dtype = DType::kFp8E4M3; }, "out.dtype");
  ExpectRefused(fold, [](auto& a) { a.part_stride = 7; }, "part_stride = 7: must be at least 8");
  ExpectRefused(fold, [](auto& a) { a.out_stride = 7; }, "out_stride = 7: must be at least 8");
}

TEST(CheckShapesTest, AStepIsCheckedWithoutItsMemory) {
  const AdvanceStepArgs step{.num_seqs = 2,
                             .num_queries = 2,
                             .block_size = 16,
                             .sampled_tokens = Nowhere<const int32_t>(),
                             .block_tables = Nowhere<const int32_t>(),
                             .max_blocks = 4,
                             .tokens = Nowhere<int32_t>(),
                             .positions = Nowhere<int32_t>(),
                             .seq_lens = Nowhere<int32_t>(),
                             .slot_mapping = Nowhere<int64_t>()};
  ExpectRefused(step, [](auto& a) { a.num_queries = 3; }, "num_queries = 3");
  ExpectRefused(step, [](auto& a) { a.max_blocks = 0; }, "max_blocks = 0");
}

}  // namespace
}  // namespace baton
