#include "kernels/api/cascade_attention.h"

#include <functional>

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

class CascadeAttentionTest : public LibraryTest {
 protected:
  // With as much memory as it needs, between canaries, and num_tokens told.
  absl::Status Run(CascadeAttentionArgs args) {
    GuardedFloats workspace(CascadeWorkspaceBytes(args) / 4 + 4);
    float* const begin = workspace.data();
    const auto behind = reinterpret_cast<uintptr_t>(begin) % 16 / sizeof(float);
    args.workspace = reinterpret_cast<std::byte*>(begin + (behind == 0 ? 0 : 4 - behind));
    args.workspace_bytes = CascadeWorkspaceBytes(args);
    const absl::Status status = CascadeAttention(*kernels_, *kernels_, args);
    EXPECT_TRUE(workspace.GuardsIntact());
    return status;
  }
  static CascadeAttentionArgs Cascade(AttentionProblem& p, float* out, float* lse,
                                      int32_t prefix_len) {
    CascadeAttentionArgs args{.attention = p.Args(out, lse), .common_prefix_len = prefix_len};
    args.attention.num_tokens = p.total_q;
    return args;
  }
  void ExpectRefused(const std::function<void(CascadeAttentionArgs&)>& spoil,
                     const std::string& message) {
    AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{3, 40}, {2, 37}}}, 1);
    p.SharePrefix(32);
    GuardedFloats out(p.out_size()), lse(p.total_q * 4);
    CascadeAttentionArgs args = Cascade(p, out.data(), lse.data(), 32);
    std::vector<std::byte> memory(CascadeWorkspaceBytes(args) + 16);
    args.workspace = memory.data() + 16 - reinterpret_cast<uintptr_t>(memory.data()) % 16;
    args.workspace_bytes = CascadeWorkspaceBytes(args);
    EXPECT_TRUE(CascadeAttention(*kernels_, *kernels_, args).ok());
    const std::vector<float> before = out.values();
    spoil(args);
    const absl::Status status = CascadeAttention(*kernels_, *kernels_, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    EXPECT_EQ(out.values(), before) << message;
  }
};

TEST_P(CascadeAttentionTest, SharedPrefixAndSuffixesMergeIntoTheAttentionOfTheWhole) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const bool sinks : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        AttentionProblem p({.heads = 6,
                            .kv_heads = 2,
                            .dim = 32,
                            .kv = compute,
                            .sequences = {{1, 300}, {40, 300}, {1, 261}, {3, 259}},
                            .scores = {.softcap = 20},
                            .compute = compute,
                            .v_dim = 24,
                            .layout = layout,
                            .sinks = sinks},
                           5);
        p.SharePrefix(256);
        // The entries of the prefix in other rows are not looked at.
        for (int64_t s = 1; s < 4; ++s) std::fill_n(p.table.begin() + s * p.max_blocks, 16, -1);
        GuardedFloats out(p.out_size()), lse(p.total_q * 6);
        const absl::Status status = Run(Cascade(p, out.data(), lse.data(), 256));
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
        p.Check(out.values(), lse.values(), 1000, "cascade");
      }
    }
  }
}

// Where entries begin is the caller's choice, and rows of outputs may lie apart.
TEST_P(CascadeAttentionTest, TablesMayBeRaggedAndOutputsHaveStrides) {
  AttentionProblem p({.heads = 2, .kv_heads = 1, .sequences = {{2, 40}, {1, 50}, {0, 3}}}, 2);
  p.SharePrefix(32);
  // The second sequence's entries first.
  std::vector<int32_t> table(2 * p.max_blocks);
  std::copy_n(p.table.begin(), p.max_blocks, table.begin() + p.max_blocks);
  std::copy_n(p.table.begin() + p.max_blocks, p.max_blocks, table.begin());
  const auto second = static_cast<int32_t>(p.max_blocks);
  const std::vector<int32_t> starts = {second, 0, 0};
  const int64_t width = 2 * p.shape.v_dim, stride = width + 3, lse_stride = p.total_q + 2;
  GuardedFloats out(p.total_q * stride), lse(2 * lse_stride);
  CascadeAttentionArgs args = Cascade(p, out.data(), lse.data(), 32);
  args.attention.block_table = table.data();
  args.attention.table_starts = starts.data();
  args.attention.out_stride = stride;
  args.attention.lse_stride = lse_stride;
  const absl::Status status = Run(args);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> written = out.values(), lses = lse.values();
  std::vector<float> rows, heads;
  for (int64_t t = 0; t < p.total_q; ++t) {
    const auto row = written.begin() + t * stride;
    rows.insert(rows.end(), row, row + width);
    for (int64_t i = width; i < stride; ++i) EXPECT_EQ(row[i], GuardedFloats::kCanary);
  }
  for (int64_t h = 0; h < 2; ++h) {
    const auto row = lses.begin() + h * lse_stride;
    heads.insert(heads.end(), row, row + p.total_q);
    EXPECT_EQ(row[p.total_q], GuardedFloats::kCanary);
  }
  p.Check(rows, heads, INT64_MAX, "strides");
}

TEST_P(CascadeAttentionTest, WhatItCannotDoIsRefusedByName) {
  using Break = std::function<void(CascadeAttentionArgs&)>;
  static const int32_t lens[] = {30, 40};
  static const float slopes[] = {1, 1, 1, 1};
  static const int32_t before_zero[] = {-8, -3, -3}, falling[] = {0, 6, 5},
                       first_only[] = {0, 5, 5};
  static const int32_t no_length[] = {40, INT32_MIN};
  static const int32_t no_prefix[] = {0, -1, 2, -1, 0, 1, 3, -1};
  static const int32_t no_suffix[] = {0, 1, 2, -1, 0, 1, 1000, -1};
  const std::pair<Break, std::string> cases[] = {
      {[](auto& a) { a.common_prefix_len = 20; },
       "common_prefix_len = 20: must be a multiple of k_cache.block_size = 16 above 0"},
      {[](auto& a) { a.common_prefix_len = 0; }, "common_prefix_len = 0"},
      {[](auto& a) { a.attention.scores.window_left = 5; }, "scores.window_left = 5: must be -1"},
      {[](auto& a) { a.attention.scores.window_right = 0; }, "scores.window_right = 0: must be -1"},
      {[](auto& a) { a.attention.scores.local_chunk = 8; }, "scores.local_chunk = 8: must be 0"},
      {[](auto& a) { a.attention.scales.output_scale = 2; }, "scales are given: must be none"},
      {[](auto& a) { a.attention.scores.alibi_slopes = slopes; },
       "scores.alibi_slopes is given: must be null"},
      {[](auto& a) { a.attention.dense.cu_seqlens_k = lens; },
       "dense.cu_seqlens_k is given: must be null"},
      {[](auto& a) { a.attention.seq_lens = lens; },
       "seq_lens[0] = 30: must be at least common_prefix_len + query length = 35"},
      {[](auto& a) {
         a.attention.cu_seqlens_q = first_only;
         a.attention.seq_lens = no_length;
       },
       "seq_lens[1] = -2147483648: must be at least 0"},
      {[](auto& a) { a.attention.cu_seqlens_q = before_zero; }, "cu_seqlens_q[0] = -8: must be 0"},
      {[](auto& a) { a.attention.cu_seqlens_q = falling; },
       "cu_seqlens_q[2] = 5: must be not less than the entry before"},
      {[](auto& a) { a.attention.max_seqlen_q = 1; },
       "max_seqlen_q = 1: must be at least query length [0] = 3"},
      {[](auto& a) { a.attention.max_seqlen_k = 39; },
       "max_seqlen_k = 39: must be at least seq_lens[0] = 40"},
      {[](auto& a) { a.attention.block_table = no_prefix; },
       "block_table[0][1] = -1: must be in [0, "},
      {[](auto& a) { a.attention.block_table = no_suffix; },
       "block_table[1][2] = 1000: must be in [0, "},
      {[](auto& a) { a.attention.num_heads = 3; }, "num_heads = 3: must be a multiple"},
      {[](auto& a) {
         a.attention.num_heads = 1 << 20;
         a.attention.out_stride = INT64_MAX;
       },
       "num_heads = 1048576: must be in [1, 65536]"},
      {[](auto& a) {
         a.attention.v_cache.dim = 257;
         a.attention.v_cache.block_stride = 1 << 20;
       },
       "v_cache.dim = 257: must be at most 256"},
      {[](auto& a) { a.attention.out = nullptr; }, "out = null: must point to data"},
      {[](auto& a) { a.attention.round_to = DType::kFp8E4M3; }, "round_to = 3: must be"},
      {[](auto& a) { a.attention.lse_stride = 4; }, "lse_stride = 4: must be at least 5"},
      {[](auto& a) { a.attention.block_table = nullptr; }, "block_table = null: must point"},
  };
  for (const auto& [spoil, message] : cases) ExpectRefused(spoil, message);
}

TEST_P(CascadeAttentionTest, WhatIsToldAndItsMemoryAreRefusedByName) {
  const std::pair<std::function<void(CascadeAttentionArgs&)>, std::string> cases[] = {
      {[](auto& a) { a.attention.num_tokens = 0; }, "num_tokens = 0: must be in [1, 2147483647]"},
      {[](auto& a) { a.attention.num_tokens = 4; },
       "num_tokens = 4: must be 0 or cu_seqlens_q[num_seqs] = 5"},
      {[](auto& a) { a.attention.max_seqlen_k = 32; },
       "max_seqlen_k = 32: must be above common_prefix_len = 32"},
      {[](auto& a) { a.attention.max_blocks = 1; },
       "max_blocks = 1: must be at least the blocks of the prefix, 2"},
      {[](auto& a) { a.workspace = nullptr; }, "workspace = null: must point to data"},
      {[](auto& a) { a.workspace += 4; }, "workspace = 4: must be 0 bytes behind a multiple of 16"},
      {[](auto& a) { --a.workspace_bytes; }, "workspace_bytes = "},
  };
  for (const auto& [spoil, message] : cases) ExpectRefused(spoil, message);
}

BATON_FOR_EACH_LIBRARY(CascadeAttentionTest);

TEST(CascadeAttentionPolicyTest, PaysForLongPrefixesOfManySequences) {
  CascadeAttentionArgs args{.attention = {.num_seqs = 8}, .common_prefix_len = 256};
  EXPECT_TRUE(CascadeAttentionPays(args));
  args.common_prefix_len = 255;
  EXPECT_FALSE(CascadeAttentionPays(args));
  args = {.attention = {.num_seqs = 7}, .common_prefix_len = 256};
  EXPECT_FALSE(CascadeAttentionPays(args));
  args = {.attention = {.num_seqs = 8, .scores = {.window_left = 4}}, .common_prefix_len = 256};
  EXPECT_FALSE(CascadeAttentionPays(args));
}

}  // namespace
}  // namespace baton
