#include "kernels/cpu/check_args.h"

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

template <typename Args>
void ExpectRefused(const Args& args, const std::string& message) {
  const absl::Status status = CheckArgs(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find(message), std::string::npos)
      << "wanted: " << message << "\ngot: " << status;
}

template <typename Args, typename Operand>
void ExpectF32(Args args, Operand Args::*operand, const std::string& name) {
  EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
  (args.*operand).dtype = DType::kBF16;
  if constexpr (requires { args.round_to; }) args.round_to = DType::kBF16;
  ExpectRefused(args, name + ".dtype = bf16: must be f32");
}

// Also where nothing would be read.
TEST(CheckArgsTest, EveryOperandIsF32) {
  const PackedMatrix weights = *AllocatePanels(5, 2, DType::kF32);
  std::byte memory[16];
  const CachePlane plane{.data = memory,
                         .num_blocks = 1,
                         .num_heads = 1,
                         .block_size = 1,
                         .dim = 1,
                         .block_stride = 1};
  ExpectF32<RmsNormArgs>({.dim = 1}, &RmsNormArgs::x, "x");
  ExpectF32<RmsNormArgs>({.dim = 1}, &RmsNormArgs::out, "out");
  ExpectF32<LayerNormArgs>({.dim = 1}, &LayerNormArgs::x, "x");
  ExpectF32<LayerNormArgs>({.dim = 1}, &LayerNormArgs::out, "out");
  ExpectF32<RopeArgs>({.num_heads = 1, .head_dim = 1}, &RopeArgs::x, "x");
  ExpectF32<ActivationArgs>({.dim = 1}, &ActivationArgs::x, "x");
  ExpectF32<ActivationArgs>({.dim = 1}, &ActivationArgs::out, "out");
  ExpectF32<ActivationAndMulArgs>({.dim = 1}, &ActivationAndMulArgs::gate_up, "gate_up");
  ExpectF32<ActivationAndMulArgs>({.dim = 1}, &ActivationAndMulArgs::out, "out");
  ExpectF32<SoftcapArgs>({.dim = 1, .cap = 1}, &SoftcapArgs::x, "x");
  ExpectF32<EmbeddingArgs>({}, &EmbeddingArgs::out, "out");
  ExpectF32<FoldPartialsArgs>({.dim = 1}, &FoldPartialsArgs::out, "out");
  ExpectF32<GemmArgs>({.weights = &weights}, &GemmArgs::a, "a");
  ExpectF32<GemmArgs>({.weights = &weights}, &GemmArgs::out, "out");
  const ReshapeAndCacheArgs cache{.k_cache = plane, .v_cache = plane};
  ExpectF32(cache, &ReshapeAndCacheArgs::key, "key");
  ExpectF32(cache, &ReshapeAndCacheArgs::value, "value");
  ExpectF32<ExpertGemmArgs>({}, &ExpertGemmArgs::a, "a");
  ExpectF32<ExpertGemmArgs>({}, &ExpertGemmArgs::out, "out");
  ExpectF32<MoeCombineArgs>({.top_k = 1, .dim = 1}, &MoeCombineArgs::y, "y");
  ExpectF32<MoeCombineArgs>({.top_k = 1, .dim = 1}, &MoeCombineArgs::shared, "shared");
  ExpectF32<MoeCombineArgs>({.top_k = 1, .dim = 1}, &MoeCombineArgs::out, "out");
  ExpectF32<VarlenAttentionArgs>({}, &VarlenAttentionArgs::q, "q");
  ExpectF32<VarlenAttentionArgs>({}, &VarlenAttentionArgs::out, "out");
  ExpectF32<PagedAttentionArgs>({}, &PagedAttentionArgs::q, "q");
  ExpectF32<PagedAttentionArgs>({}, &PagedAttentionArgs::out, "out");
  for (const auto& [operand, name] : {std::pair{&PrefixAttentionArgs::q, "q"},
                                      {&PrefixAttentionArgs::k, "k"},
                                      {&PrefixAttentionArgs::v, "v"}}) {
    ExpectF32<PrefixAttentionArgs>({}, operand, name);
  }
  ExpectF32<PrefixAttentionArgs>({}, &PrefixAttentionArgs::out, "out");
  for (const auto& [operand, name] : {std::pair{&AttentionWithKvCacheArgs::q, "q"},
                                      {&AttentionWithKvCacheArgs::k, "k"},
                                      {&AttentionWithKvCacheArgs::v, "v"}}) {
    ExpectF32<AttentionWithKvCacheArgs>({}, operand, name);
  }
  ExpectF32<AttentionWithKvCacheArgs>({}, &AttentionWithKvCacheArgs::out, "out");
  ExpectF32<MergeAttentionStatesArgs>({}, &MergeAttentionStatesArgs::out_a, "out_a");
  ExpectF32<MergeAttentionStatesArgs>({}, &MergeAttentionStatesArgs::out_b, "out_b");
  ExpectF32<MergeAttentionStatesArgs>({}, &MergeAttentionStatesArgs::out, "out");
  VarlenAttentionArgs args;
  args.dense.k.dtype = DType::kF16;
  ExpectRefused(args, "dense.k.dtype = f16: must be f32");
  args.dense = {.v = {nullptr, DType::kBF16}};
  ExpectRefused(args, "dense.v.dtype = bf16: must be f32");
}

TEST(CheckArgsTest, WeightsAreThisDevices) {
  float x[40] = {};
  const int32_t token = 0, offsets[] = {0, 1};
  const PackedMatrix own = *AllocatePanels(5, 8, DType::kF32);
  const PackedMatrix foreign(5, 8, DType::kF32, WeightFormat::kCuda, *AllocateHost(5 * 8 * 4));
  const std::string message = ": must be weights that this device has packed";
  GemmArgs gemm{.a = x, .a_stride = 8, .m = 1, .weights = &own, .out = x, .out_stride = 5};
  EmbeddingArgs embedding{.shards = {&own}, .tokens = &token, .num_tokens = 1, .out = x};
  ExpertGemmArgs experts{.a = x,
                         .a_stride = 8,
                         .num_a_rows = 1,
                         .expert_offsets = offsets,
                         .num_experts = 1,
                         .weights = &own,
                         .out = x,
                         .out_stride = 5};
  EXPECT_TRUE(CheckArgs(gemm).ok() && CheckArgs(embedding).ok() && CheckArgs(experts).ok());
  gemm.weights = embedding.shards[0] = experts.weights = &foreign;
  ExpectRefused(gemm, "weights" + message);
  ExpectRefused(embedding, "shards[0]" + message);
  ExpectRefused(experts, "weights" + message);
}

TEST(CheckArgsTest, PositionsAndRowsAreNotNegative) {
  float x[8] = {};
  int32_t indexes[] = {3, 0};
  const RotaryTableArgs table{
      .positions = indexes, .num_tokens = 2, .inv_freq = x, .half = 1, .cos = x, .sin = x};
  const SelectRowsArgs rows{.from = x,
                            .from_stride = 1,
                            .rows = indexes,
                            .num_rows = 2,
                            .dim = 1,
                            .to = x + 4,
                            .to_stride = 1};
  EXPECT_TRUE(CheckArgs(table).ok() && CheckArgs(rows).ok());
  indexes[1] = -1;
  ExpectRefused(table, "positions[1] = -1: must be at least 0");
  RotaryTableArgs with_other = table;
  with_other.other_inv_freq = x;
  EXPECT_TRUE(CheckArgs(with_other).ok());
  ExpectRefused(rows, "rows[1] = -1: must be at least 0");
}

TEST(CheckArgsTest, RowsWithGapsHaveRoomForTheirElements) {
  float x[32] = {};
  const int32_t token = 0;
  const PackedMatrix table = *AllocatePanels(3, 8, DType::kF32);
  RmsNormArgs norm{.x = x,
                   .x_stride = 8,
                   .num_tokens = 1,
                   .dim = 8,
                   .weight = x,
                   .residual = x,
                   .residual_stride = 9,
                   .out = x,
                   .out_stride = 8};
  EXPECT_TRUE(CheckArgs(norm).ok());
  norm.residual_stride = 7;
  ExpectRefused(norm, "residual_stride = 7: must be at least 8");
  ActivationAndMulArgs gated{.gate_up = x, .num_tokens = 1, .dim = 8, .out = x};
  EXPECT_TRUE(CheckArgs(gated).ok());
  gated.gate_up_stride = 15;
  ExpectRefused(gated, "gate_up_stride = 15: must be at least 16");
  gated.gate_up_stride = 16;
  gated.out_stride = 7;
  ExpectRefused(gated, "out_stride = 7: must be at least 8");
  EmbeddingArgs embedding{.shards = {&table}, .tokens = &token, .num_tokens = 1, .out = x};
  EXPECT_TRUE(CheckArgs(embedding).ok());
  embedding.out_stride = 7;
  ExpectRefused(embedding, "out_stride = 7: must be at least 8");
  embedding.out_stride = int64_t{1} << 50;
  ExpectRefused(embedding, "out_stride = 1125899906842624: must be at most");
}

struct AttentionCase {
  float memory[4 * 16 * 8] = {};
  int32_t cu[3] = {0, 2, 3};
  int32_t lens[2] = {5, 17};
  int32_t table[4] = {0, -1, 2, 3};
  VarlenAttentionArgs args;

  AttentionCase() {
    const CachePlane plane{.data = reinterpret_cast<std::byte*>(memory),
                           .num_blocks = 4,
                           .num_heads = 1,
                           .block_size = 16,
                           .dim = 8,
                           .block_stride = 128};
    args = {.q = memory,
            .q_stride = 16,
            .num_heads = 2,
            .num_seqs = 2,
            .cu_seqlens_q = cu,
            .seq_lens = lens,
            .block_table = table,
            .max_blocks = 2,
            .k_cache = plane,
            .v_cache = plane,
            .scores = {.scale = 1},
            .out = memory,
            .out_stride = 16};
  }
};

TEST(CheckArgsTest, AttentionNamesTheFieldItRefuses) {
  EXPECT_TRUE(CheckArgs(AttentionCase().args).ok());
  {
    AttentionCase c;
    c.args.num_heads = 3;
    c.args.k_cache.num_heads = c.args.v_cache.num_heads = 2;
    c.args.k_cache.block_stride = c.args.v_cache.block_stride = 256;
    ExpectRefused(c.args, "num_heads = 3: must be a multiple of k_cache.num_heads = 2");
  }
  {
    AttentionCase c;
    c.table[3] = 4;
    ExpectRefused(c.args, "block_table[1][1] = 4: must be in [0, 4)");
  }
  {
    AttentionCase c;
    c.table[3] = -1;
    ExpectRefused(c.args, "block_table[1][1] = -1");
  }
  {
    AttentionCase c;
    c.lens[1] = 33;
    ExpectRefused(c.args, "seq_lens[1] = 33: must be at most max_blocks * block_size = 32");
  }
  {
    AttentionCase c;
    int32_t starts[] = {3, 1};
    c.args.table_starts = starts;
    c.table[3] = 0;
    c.table[1] = 1;
    EXPECT_TRUE(CheckArgs(c.args).ok());
    c.table[2] = 9;  // The second block of sequence 1, whose first is entry 1.
    ExpectRefused(c.args, "block_table[1][1] = 9: must be in [0, 4)");
    starts[0] = -1;
    ExpectRefused(c.args, "table_starts[0] = -1: must be at least 0");
  }
  {
    AttentionCase c;
    c.args.num_tokens = 3;
    EXPECT_TRUE(CheckArgs(c.args).ok());
    c.args.num_tokens = 2;
    ExpectRefused(c.args, "num_tokens = 2: must be 0 or cu_seqlens_q[num_seqs] = 3");
    c.args.num_tokens = -1;
    ExpectRefused(c.args, "num_tokens = -1: must be at least 0");
  }
  {
    AttentionCase c;
    c.lens[0] = -1;
    ExpectRefused(c.args, "seq_lens[0] = -1: must be at least 0");
  }
  {
    AttentionCase c;
    c.cu[2] = 1;
    ExpectRefused(c.args, "cu_seqlens_q[2] = 1");
  }
  {
    AttentionCase c;
    c.args.scores.scale = NAN;
    ExpectRefused(c.args, "scale = nan");
  }
  {
    AttentionCase c;
    c.args.v_cache.block_size = 8;
    ExpectRefused(c.args, "v_cache.block_size = 8: must be that of k_cache");
  }
}

TEST(CheckArgsTest, CacheWritesNameTheSlotThatIsOutOfRange) {
  AttentionCase c;
  const int64_t slots[] = {-1, 63, 64};
  ReshapeAndCacheArgs args{.key = c.memory,
                           .key_stride = 8,
                           .value = c.memory,
                           .value_stride = 8,
                           .slot_mapping = slots,
                           .num_tokens = 2,
                           .k_cache = c.args.k_cache,
                           .v_cache = c.args.v_cache};
  EXPECT_TRUE(CheckArgs(args).ok());
  args.num_tokens = 3;
  ExpectRefused(args, "slot_mapping[2] = 64: must be less than 64");
  args.num_tokens = 2;
  args.key_stride = 7;
  ExpectRefused(args, "key_stride = 7: must be at least 8");
  args.key_stride = 8;
  args.k_cache.data = nullptr;
  ExpectRefused(args, "k_cache.data = null");
}

TEST(CheckArgsTest, ModelOperatorsNameTheFieldTheyRefuse) {
  float x[8] = {};
  ExpectRefused(
      RmsNormArgs{
          .x = x, .x_stride = 3, .num_tokens = 1, .dim = 4, .weight = x, .out = x, .out_stride = 4},
      "x_stride = 3: must be at least 4");
  ExpectRefused(RmsNormArgs{.x = x,
                            .x_stride = 4,
                            .num_tokens = 1,
                            .rows_per_token = 2,
                            .dim = 2,
                            .weight = x,
                            .residual = x,
                            .out = x,
                            .out_stride = 4},
                "rows_per_token = 2: must be 1 with a residual");
  ExpectRefused(RopeArgs{.x = x,
                         .x_stride = 4,
                         .num_tokens = 1,
                         .num_heads = 1,
                         .head_dim = 4,
                         .rotary_dim = 3,
                         .cos = x,
                         .sin = x},
                "rotary_dim = 3: must be even and at most head_dim = 4");
  ExpectRefused(ActivationAndMulArgs{.gate_up = x, .num_tokens = 1, .dim = 0, .out = x}, "dim = 0");
  ExpectRefused(ActivationArgs{.x = x, .num_tokens = 1, .dim = 8}, "out = null");
  ExpectRefused(
      LayerNormArgs{
          .x = x, .x_stride = 4, .num_tokens = 1, .dim = 4, .weight = x, .out = x, .out_stride = 3},
      "out_stride = 3: must be at least 4");
  SoftcapArgs softcap{.x = x, .x_stride = 4, .num_tokens = 2, .dim = 4};
  ExpectRefused(softcap, "cap = 0: must be finite and greater than 0");
  softcap.cap = NAN;
  ExpectRefused(softcap, "cap = nan");
  softcap.cap = 30;
  softcap.x_stride = 3;
  ExpectRefused(softcap, "x_stride = 3: must be at least 4");
  const PackedMatrix table = *AllocatePanels(5, 2, DType::kF32);
  const int32_t tokens[] = {4, 5};
  ExpectRefused(EmbeddingArgs{.shards = {&table}, .tokens = tokens, .num_tokens = 2, .out = x},
                "tokens[1] = 5: must be in [0, 5)");
  ExpectRefused(
      GemmArgs{.a = x, .a_stride = 1, .m = 1, .weights = &table, .out = x, .out_stride = 5},
      "a_stride = 1: must be at least 2");
  const PackedMatrix empty;
  ExpectRefused(GemmArgs{.a = x, .a_stride = 1, .m = 1, .weights = &empty, .out = x},
                "weights.data = null");
  const WeightRows part{nullptr, DType::kF32, 1};
  ExpectRefused(PackWeightsArgs{.parts = &part, .num_parts = 1, .k = 1}, "parts[0].data = null");
}

// A value of the enumeration that it does not have.
template <typename Enum>
constexpr Enum NoSuch() {
  return static_cast<Enum>(9);
}

TEST(CheckArgsTest, OutputsAreRoundedToF32F16OrBf16Only) {
  float x[8] = {};
  for (const DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2, NoSuch<DType>()}) {
    const std::string message =
        "round_to = " + std::to_string(static_cast<int>(dtype)) + ": must be f32, f16 or bf16";
    ExpectRefused(RmsNormArgs{.x = x,
                              .x_stride = 4,
                              .num_tokens = 1,
                              .dim = 4,
                              .weight = x,
                              .round_to = dtype,
                              .out = x,
                              .out_stride = 4},
                  message);
    ExpectRefused(LayerNormArgs{.x = x,
                                .x_stride = 4,
                                .num_tokens = 1,
                                .dim = 4,
                                .weight = x,
                                .round_to = dtype,
                                .out = x,
                                .out_stride = 4},
                  message);
    ExpectRefused(ActivationArgs{.x = x, .num_tokens = 1, .dim = 4, .round_to = dtype, .out = x},
                  message);
    ExpectRefused(
        ActivationAndMulArgs{.gate_up = x, .num_tokens = 1, .dim = 4, .round_to = dtype, .out = x},
        message);
    AttentionCase c;
    c.args.round_to = dtype;
    ExpectRefused(c.args, message);
  }
  const WeightRows part{reinterpret_cast<const std::byte*>(x), NoSuch<DType>(), 1};
  ExpectRefused(PackWeightsArgs{.parts = &part, .num_parts = 1, .k = 1},
                "parts[0].dtype = 9: must be f32, f16 or bf16");
}

TEST(CheckArgsTest, NormsHaveAFiniteEpsAndActivationsAKind) {
  float x[8] = {};
  for (const auto& [eps, text] :
       {std::pair{-1.0f, "eps = -1"}, {NAN, "eps = nan"}, {INFINITY, "eps = inf"}}) {
    const std::string message = std::string(text) + ": must be finite and at least 0";
    ExpectRefused(RmsNormArgs{.x = x,
                              .x_stride = 4,
                              .num_tokens = 1,
                              .dim = 4,
                              .weight = x,
                              .eps = eps,
                              .out = x,
                              .out_stride = 4},
                  message);
    ExpectRefused(LayerNormArgs{.x = x,
                                .x_stride = 4,
                                .num_tokens = 1,
                                .dim = 4,
                                .weight = x,
                                .eps = eps,
                                .out = x,
                                .out_stride = 4},
                  message);
  }
  const auto kind = NoSuch<ActivationKind>();
  const std::string message = "activation = 9: must be SILU, GELU, GELU_TANH or RELU";
  ExpectRefused(ActivationArgs{.x = x, .num_tokens = 1, .dim = 4, .activation = kind, .out = x},
                message);
  ExpectRefused(
      ActivationAndMulArgs{.gate_up = x, .num_tokens = 1, .dim = 4, .activation = kind, .out = x},
      message);
}

TEST(CheckArgsTest, StridesBeyondAnyMemoryAreRefused) {
  constexpr int64_t kBeyond = (int64_t{1} << 42) + 1;
  const std::string allowed = " = 4398046511105: must be at most 4398046511104";
  float x[8] = {};
  RmsNormArgs norm{
      .x = x, .x_stride = 4, .num_tokens = 1, .dim = 4, .weight = x, .out = x, .out_stride = 4};
  EXPECT_TRUE(CheckArgs(norm).ok());
  norm.out_stride = kBeyond;
  ExpectRefused(norm, "out_stride" + allowed);
  AttentionCase c;
  float lse[6];
  c.args.lse = lse;
  c.args.lse_stride = kBeyond;
  ExpectRefused(c.args, "lse_stride" + allowed);
  c.args.q_stride = kBeyond;
  ExpectRefused(c.args, "q_stride" + allowed);
  const int64_t slot = 0;
  ExpectRefused(ReshapeAndCacheArgs{.key = c.memory,
                                    .key_stride = kBeyond,
                                    .value = c.memory,
                                    .value_stride = 8,
                                    .slot_mapping = &slot,
                                    .num_tokens = 1,
                                    .k_cache = c.args.k_cache,
                                    .v_cache = c.args.v_cache},
                "key_stride" + allowed);
}

TEST(CheckArgsTest, AdvanceStepNamesTheRowWithoutRoom) {
  int32_t tokens[2] = {}, positions[2] = {}, seq_lens[] = {7, 8};
  const int32_t table[] = {3, -1, 4, -1};
  int64_t slots[2] = {};
  AdvanceStepArgs args{.num_seqs = 2,
                       .num_queries = 1,
                       .block_size = 4,
                       .sampled_tokens = tokens,
                       .block_tables = table,
                       .max_blocks = 2,
                       .tokens = tokens,
                       .positions = positions,
                       .seq_lens = seq_lens,
                       .slot_mapping = slots};
  ExpectRefused(args, "block_tables[0][1] = -1: must be a block");
  seq_lens[0] = 3;
  EXPECT_TRUE(CheckArgs(args).ok());
  args.num_queries = 2;
  ExpectRefused(args, "seq_lens[1] = 8: must be in [0, 8)");
  seq_lens[0] = -1;
  ExpectRefused(args, "seq_lens[0] = -1");
  args.num_queries = 3;
  ExpectRefused(args, "num_queries = 3: must be in [0, num_seqs = 2]");
  args.num_queries = 1;
  args.block_size = 0;
  ExpectRefused(args, "block_size = 0");
  args.block_size = 4;
  args.max_blocks = INT64_MAX;
  ExpectRefused(args, "max_blocks");
  args.slot_mapping = nullptr;
  ExpectRefused(args, "slot_mapping = null");
}

}  // namespace
}  // namespace baton
