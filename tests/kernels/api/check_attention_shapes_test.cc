#include <utility>

#include "tests/kernels/api/shapes_fixture.h"

namespace baton {
namespace {

ScoreOptions DeviceScores() {
  return {.alibi_slopes = Nowhere<const float>(),
          .alibi_stride = 4,
          .sinks = Nowhere<const float>()};
}

VarlenAttentionArgs Varlen() {
  return {.q = Input(),
          .q_stride = 32,
          .num_heads = 4,
          .num_seqs = 2,
          .cu_seqlens_q = Nowhere<const int32_t>(),
          .num_tokens = 5,
          .max_seqlen_q = 4,
          .seq_lens = Nowhere<const int32_t>(),
          .max_seqlen_k = 60,
          .block_table = Nowhere<const int32_t>(),
          .max_blocks = 4,
          .table_starts = Nowhere<const int32_t>(),
          .k_cache = DevicePlane(DType::kFp8E4M3),
          .v_cache = DevicePlane(DType::kFp8E4M3),
          .scores = DeviceScores(),
          .round_to = DType::kBF16,
          .out = Output(),
          .out_stride = 32,
          .lse = Nowhere<float>(),
          .lse_stride = 5};
}

TEST(CheckAttentionShapesTest, VarlenIsCheckedWithoutItsMemory) {
  ExpectRefused(Varlen(), [](auto& a) { a.q_stride = 31; }, "q_stride = 31: must be at least 32");
  ExpectRefused(Varlen(), [](auto& a) { a.lse_stride = 4; }, "lse_stride = 4: must be at least 5");
  ExpectRefused(Varlen(), [](auto& a) { a.out = {nullptr, DType::kBF16}; }, "out = null");
  ExpectRefused(Varlen(), [](auto& a) { a.seq_lens = nullptr; }, "seq_lens = null");
  ExpectRefused(Varlen(), [](auto& a) { a.cu_seqlens_q = nullptr; }, "cu_seqlens_q = null");
  ExpectRefused(Varlen(), [](auto& a) { a.num_tokens = -1; }, "num_tokens = -1");
  ExpectRefused(Varlen(), [](auto& a) { a.scores.alibi_stride = 3; }, "scores.alibi_stride = 3");
  ExpectRefused(Varlen(), [](auto& a) { a.q.dtype = DType::kFp8E4M3; }, "q.dtype");
  ExpectRefused(Varlen(), [](auto& a) { a.round_to = DType::kF32; }, "out.dtype = bf16");
  // How many tokens there are is then for him to say who can read it.
  VarlenAttentionArgs untold = Varlen();
  untold.num_tokens = 0;
  untold.q_stride = 1;
  ExpectAllowed(untold);
  EXPECT_FALSE(CheckRows(untold, 5).ok());

  VarlenAttentionArgs dense = Varlen();
  dense.k_cache = dense.v_cache = {};
  dense.dense = {.k = Input(),
                 .k_stride = 16,
                 .v = Input(),
                 .v_stride = 16,
                 .num_heads = 2,
                 .k_dim = 8,
                 .v_dim = 8,
                 .cu_seqlens_k = Nowhere<const int32_t>()};
  ExpectRefused(dense, [](auto& a) { a.dense.k_dim = 257; }, "dense.k_dim = 257");
  ExpectRefused(dense, [](auto& a) { a.dense.k.dtype = DType::kFp8E4M3; }, "dense.k.dtype");
  ExpectRefused(dense, [](auto& a) { a.dense.v.dtype = DType::kFp8E4M3; }, "dense.v.dtype");
}

TEST(CheckAttentionShapesTest, PagedIsCheckedWithoutItsMemory) {
  const VarlenAttentionArgs a = Varlen();
  const PagedAttentionArgs paged{.q = a.q,
                                 .q_stride = 32,
                                 .num_heads = 4,
                                 .num_seqs = 2,
                                 .block_tables = a.block_table,
                                 .max_blocks = 4,
                                 .table_starts = a.table_starts,
                                 .seq_lens = a.seq_lens,
                                 .max_seq_len = 60,
                                 .k_cache = a.k_cache,
                                 .v_cache = a.v_cache,
                                 .scores = a.scores,
                                 .round_to = DType::kBF16,
                                 .out = a.out,
                                 .out_stride = 32};
  ExpectRefused(paged, [](auto& p) { p.out_stride = 31; }, "out_stride = 31");
  ExpectRefused(paged, [](auto& p) { p.sparsity = {.vert_stride = 2, .block_size = 24}; },
                "sparsity.block_size = 24");
  ExpectRefused(paged, [](auto& p) { p.q.dtype = DType::kFp8E4M3; }, "q.dtype");
  ExpectRounded(paged);
}

TEST(CheckAttentionShapesTest, PrefixIsCheckedWithoutItsMemory) {
  const VarlenAttentionArgs a = Varlen();
  const PrefixAttentionArgs prefix{.q = a.q,
                                   .q_stride = 32,
                                   .num_heads = 4,
                                   .k = Input(),
                                   .k_stride = 16,
                                   .v = Input(),
                                   .v_stride = 16,
                                   .num_seqs = 2,
                                   .cu_seqlens_q = a.cu_seqlens_q,
                                   .seq_lens = a.seq_lens,
                                   .block_table = a.block_table,
                                   .max_blocks = 4,
                                   .k_cache = a.k_cache,
                                   .v_cache = a.v_cache,
                                   .scores = a.scores,
                                   .round_to = DType::kBF16,
                                   .out = a.out,
                                   .out_stride = 32};
  ExpectRefused(prefix, [](auto& p) { p.scores.causal = false; }, "scores.causal = 0");
  EXPECT_TRUE(CheckRows(prefix, 5).ok());
  ExpectRounded(prefix);
  ExpectRefused(prefix, [](auto& p) { p.num_tokens = -1; }, "num_tokens = -1");
  // Rows are those of the tokens, where it is told how many there are.
  ExpectRefused(
      prefix,
      [](auto& p) {
        p.num_tokens = 5;
        p.k_stride = 1;
      },
      "k_stride = 1");
  PrefixAttentionArgs narrow = prefix;
  narrow.k_stride = 15;
  EXPECT_FALSE(CheckRows(narrow, 5).ok());
  for (const auto& [operand, name] : {std::pair{&PrefixAttentionArgs::q, "q.dtype"},
                                      {&PrefixAttentionArgs::k, "k.dtype"},
                                      {&PrefixAttentionArgs::v, "v.dtype"}}) {
    ExpectRefused(prefix, [&](auto& p) { (p.*operand).dtype = DType::kFp8E4M3; }, name);
  }
}

TEST(CheckAttentionShapesTest, AppendingIsCheckedWithoutItsMemory) {
  const VarlenAttentionArgs a = Varlen();
  const AttentionWithKvCacheArgs append{.q = a.q,
                                        .num_heads = 4,
                                        .num_seqs = 2,
                                        .num_queries = 1,
                                        .k = Input(),
                                        .v = Input(),
                                        .num_new = 1,
                                        .k_cache = a.k_cache,
                                        .v_cache = a.v_cache,
                                        .cache_seqlens = Nowhere<const int32_t>(),
                                        .cache_leftpad = Nowhere<const int32_t>(),
                                        .block_table = a.block_table,
                                        .max_blocks = 4,
                                        .rotary_cos = Nowhere<const float>(),
                                        .rotary_sin = Nowhere<const float>(),
                                        .num_rotary_positions = 64,
                                        .rotary_dim = 8,
                                        .scores = a.scores,
                                        .round_to = DType::kBF16,
                                        .out = a.out};
  ExpectRefused(append, [](auto& p) { p.rotary_dim = 9; }, "rotary_dim = 9");
  ExpectRefused(append, [](auto& p) { p.k = {}; }, "k = null");
  ExpectRounded(append);
  for (const auto& [operand, name] : {std::pair{&AttentionWithKvCacheArgs::q, "q.dtype"},
                                      {&AttentionWithKvCacheArgs::k, "k.dtype"},
                                      {&AttentionWithKvCacheArgs::v, "v.dtype"}}) {
    ExpectRefused(append, [&](auto& p) { (p.*operand).dtype = DType::kFp8E4M3; }, name);
  }
}

TEST(CheckAttentionShapesTest, MergingIsCheckedWithoutItsMemory) {
  const MergeAttentionStatesArgs merge{.out_a = Input(),
                                       .lse_a = Nowhere<const float>(),
                                       .out_b = Input(),
                                       .lse_b = Nowhere<const float>(),
                                       .num_tokens = 2,
                                       .num_heads = 4,
                                       .dim = 8,
                                       .round_to = DType::kBF16,
                                       .out = Output()};
  ExpectRefused(merge, [](auto& m) { m.lse_b = nullptr; }, "lse_b = null");
  ExpectRounded(merge);
  ExpectRefused(merge, [](auto& m) { m.out_a.dtype = DType::kFp8E4M3; }, "out_a.dtype");
  ExpectRefused(merge, [](auto& m) { m.out_b.dtype = DType::kFp8E4M3; }, "out_b.dtype");
}

}  // namespace
}  // namespace baton
