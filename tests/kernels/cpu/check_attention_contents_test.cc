#include <functional>
#include <numeric>

#include "kernels/cpu/check_args.h"
#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

TEST(CheckAttentionArgsTest, DecodeNamesTheFieldAndWhatIsAllowed) {
  float out[2 * 4 * 8];
  using Break = std::function<void(PagedAttentionArgs&)>;
  static float infinite = INFINITY;
  static const float slopes[] = {1, 1, NAN, 1};
  static const float slopes_of_two[] = {1, 1, 1, 1, NAN, 1, INFINITY, 1, 1};
  const std::pair<Break, std::string> cases[] = {
      {[](auto& a) { a.num_heads = 5; }, "num_heads = 5: must be a multiple of k_cache.num_heads"},
      {[](auto& a) { a.max_seq_len = 20; }, "max_seq_len = 20: must be at least seq_lens[1] = 40"},
      {[](auto& a) { a.max_blocks = 2; }, "seq_lens[1] = 40: must be at most"},
      {[](auto& a) { a.k_cache.num_blocks = a.v_cache.num_blocks = 1; }, "block_tables["},
      {[](auto& a) { a.scores.window_left = -2; }, "scores.window_left = -2"},
      {[](auto& a) { a.scores.softcap = -1; }, "scores.softcap = -1"},
      {[](auto& a) { a.scores.scale = infinite; }, "scores.scale = inf"},
      {[](auto& a) { a.scores.alibi_stride = 3; }, "scores.alibi_stride = 3"},
      {[](auto& a) { a.lse_stride = 1; }, "lse_stride = 1: must be at least 2"},
      {[](auto& a) { a.q_stride = 31; }, "q_stride = 31: must be at least 32"},
      {[](auto& a) { a.round_to = DType::kFp8E4M3; }, "round_to"},
      {[](auto& a) { a.split = static_cast<AttentionSplit>(9); },
       "split = 9: must be AUTO, SINGLE_PASS, SPLIT or REFERENCE"},
      {[](auto& a) { a.k_cache.dtype = a.v_cache.dtype = static_cast<DType>(9); },
       "k_cache.dtype = 9: must be f32, f16, bf16, fp8_e4m3 or fp8_e5m2"},
      {[](auto& a) { a.scores.alibi_slopes = slopes; },
       "scores.alibi_slopes[2] = nan: must be finite"},
      {[](auto& a) {
         a.scores.alibi_slopes = slopes_of_two;
         a.scores.alibi_stride = 5;
       },
       "scores.alibi_slopes[6] = inf: must be finite"},
      {[](auto& a) { a.scores.alibi_stride = INT64_MAX; }, "scores.alibi_stride = 9223"},
      {[](auto& a) { a.block_tables = nullptr; }, "block_tables = null"},
      {[](auto& a) { a.v_cache.dtype = DType::kBF16; }, "v_cache.dtype"},
      {[](auto& a) {
         a.k_cache.dim = 257;
         a.k_cache.block_stride = 1 << 20;
       },
       "k_cache.dim = 257"},
  };
  for (const auto& [spoil, message] : cases) {
    AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{1, 3}, {1, 40}}}, 1);
    float lse[8];
    PagedAttentionArgs args = p.PagedArgs(out, AttentionSplit::kAuto, lse);
    EXPECT_TRUE(CheckArgs(args).ok());
    spoil(args);
    const absl::Status status = CheckArgs(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }
}

TEST(CheckAttentionArgsTest, EntriesBehindTheWindowMayBeUnallocated) {
  AttentionProblem p({.sequences = {{2, 100}}, .scores = {.window_left = 20}}, 1);
  EXPECT_EQ(p.table[3], -1);  // Keys 48 to 63; the first query sees 78 to 98.
  EXPECT_GE(p.table[4], 0);
  std::vector<float> out(p.out_size());
  EXPECT_TRUE(CheckArgs(p.Args(out.data())).ok());
  p.shape.scores.window_left = 40;
  EXPECT_FALSE(CheckArgs(p.Args(out.data())).ok());
}

absl::Status CheckWith(const AttentionShapes& shape,
                       const std::function<void(PagedAttentionArgs&)>& spoil) {
  AttentionProblem p(shape, 1);
  std::vector<float> out(p.out_size());
  PagedAttentionArgs args = p.PagedArgs(out.data(), AttentionSplit::kAuto);
  EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
  spoil(args);
  const absl::Status status = CheckArgs(args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return status;
}

TEST(CheckAttentionArgsTest, SparsityNamesTheFieldAndWhatIsAllowed) {
  const AttentionShapes shape{.heads = 4,
                              .kv_heads = 2,
                              .sequences = {{1, 40}},
                              .sparsity = {.vert_stride = 2, .block_size = 32}};
  const std::pair<std::function<void(PagedAttentionArgs&)>, std::string> cases[] = {
      {[](auto& a) { a.sparsity.block_size = 24; },
       "sparsity.block_size = 24: must be a multiple of k_cache.block_size = 16"},
      {[](auto& a) { a.sparsity.block_size = 0; }, "sparsity.block_size = 0"},
      {[](auto& a) { a.sparsity.local_blocks = -1; },
       "sparsity.local_blocks = -1: must be at least 0"},
      {[](auto& a) { a.sparsity.tp_rank = -1; }, "sparsity.tp_rank = -1: must be in [0, 65536]"},
      {[](auto& a) { a.sparsity.head_sliding_step = 70000; },
       "sparsity.head_sliding_step = 70000: must be in [-65536, 65536]"},
  };
  for (const auto& [spoil, message] : cases) {
    const absl::Status status = CheckWith(shape, spoil);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }
}

TEST(CheckAttentionArgsTest, LayoutsNameWhatTheyCannotHold) {
  AttentionShapes shape{.heads = 2, .kv_heads = 2, .dim = 24, .sequences = {{1, 3}}};
  const std::pair<std::function<void(PagedAttentionArgs&)>, std::string> cases[] = {
      {[](auto& a) {
         a.k_cache.layout = a.v_cache.layout = CacheLayout::kPacked;
         a.k_cache.dtype = a.v_cache.dtype = DType::kFp8E4M3;
       },
       "k_cache.dim = 24: must be a multiple of 16 (16 bytes) in a PACKED plane of fp8_e4m3"},
      {[](auto& a) { a.v_cache.layout = CacheLayout::kNhd; },
       "v_cache.layout = 1: must be that of k_cache"},
      {[](auto& a) { a.k_cache.layout = static_cast<CacheLayout>(7); }, "k_cache.layout = 7"},
      {[](auto& a) { a.k_cache.token_stride = 23; }, "k_cache.token_stride = 23: must be in [24,"},
      {[](auto& a) { a.k_cache.head_stride = 16 * 24 - 1; },
       "k_cache.head_stride = 383: must be in [384,"},
      {[](auto& a) { a.k_cache.token_stride = 25; },
       "k_cache.block_stride = 768: must be at least"},
      {[](auto& a) {
         a.k_cache.layout = a.v_cache.layout = CacheLayout::kPacked;
         a.k_cache.head_stride = 384;
       },
       "k_cache.head_stride = 384: must be 0 in PACKED"},
  };
  for (const auto& [spoil, message] : cases) {
    const absl::Status status = CheckWith(shape, spoil);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }
}

TEST(CheckAttentionArgsTest, DenseKeysAndMasksNameTheFieldAndWhatIsAllowed) {
  static const int32_t cu_k[] = {0, 3, 2};
  static const int32_t lens[] = {4, 40};
  static const float sinks[] = {0, NAN, 0, 0};
  static float some[8] = {};
  const std::pair<std::function<void(VarlenAttentionArgs&)>, std::string> cases[] = {
      {[](auto& a) { a.dense.cu_seqlens_k = cu_k; },
       "dense.cu_seqlens_k[2] = 2: must be not less than the entry before"},
      {[](auto& a) { a.seq_lens = lens; }, "seq_lens[0] = 4: must be in [0, 3]"},
      {[](auto& a) { a.dense.k = nullptr; }, "dense.k = null"},
      {[](auto& a) { a.dense.v = nullptr; }, "dense.v = null"},
      {[](auto& a) { a.dense.cu_seqlens_k = nullptr; },
       "dense.k is given: must be null without dense.cu_seqlens_k"},
      {[](auto& a) { a.dense.k_stride = INT64_MAX; }, "dense.k_stride = 9223372036854775807"},
      {[](auto& a) { a.num_heads = 3; },
       "num_heads = 3: must be a multiple of dense.num_heads = 2"},
      {[](auto& a) { a.dense.k_dim = 257; }, "dense.k_dim = 257: must be in [1, 256]"},
      {[](auto& a) { a.dense.v_stride = 15; }, "dense.v_stride = 15: must be at least 16"},
      {[](auto& a) { a.k_cache.data = reinterpret_cast<std::byte*>(some); },
       "k_cache.data is given: must be null with dense.cu_seqlens_k"},
      {[](auto& a) { a.max_seqlen_q = 1; }, "max_seqlen_q = 1: must be at least"},
      {[](auto& a) { a.max_seqlen_k = 39; },
       "max_seqlen_k = 39: must be at least seq_lens[1] = 40"},
      {[](auto& a) { a.scores.local_chunk = -1; }, "scores.local_chunk = -1"},
      {[](auto& a) {
         a.scores.local_chunk = 8;
         a.scores.causal = false;
       },
       "scores.local_chunk = 8: must be 0 without scores.causal"},
      {[](auto& a) { a.scores.sinks = sinks; },
       "scores.sinks[1] = nan: must be a number below infinity"},
  };
  for (const auto& [spoil, message] : cases) {
    AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{2, 3}, {2, 40}}}, 1);
    std::vector<float> out(p.out_size());
    VarlenAttentionArgs args = p.DenseArgs(out.data());
    EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
    spoil(args);
    const absl::Status status = CheckArgs(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }
}

// Of 2^31 - 8 rows; the cache is not looked at.
TEST(CheckAttentionArgsTest, ASequenceOfACacheIsShorterThanTwoToThe31) {
  float x[8] = {};
  const CachePlane plane{.data = reinterpret_cast<std::byte*>(x),
                         .num_blocks = 1 << 12,
                         .num_heads = 1,
                         .block_size = 1 << 20,
                         .dim = 1,
                         .block_stride = 1 << 20};
  std::vector<int32_t> table(2049);
  std::iota(table.begin(), table.end(), 0);
  int32_t len = INT32_MAX - 2;
  const AttentionWithKvCacheArgs args{.num_heads = 1,
                                      .num_seqs = 1,
                                      .k = x,
                                      .v = x,
                                      .num_new = 3,
                                      .k_cache = plane,
                                      .v_cache = plane,
                                      .cache_seqlens = &len,
                                      .block_table = table.data(),
                                      .max_blocks = 2049};
  EXPECT_EQ(CheckArgs(args).message(),
            "cache_seqlens[0] = 2147483645: must be in [0, 2147483644]: a capacity of 2147483647 "
            "with num_new = 3");
  len = INT32_MAX - 3;
  EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
}

TEST(CheckAttentionArgsTest, PrefixNamesTheFieldAndWhatIsAllowed) {
  static const int32_t lens[] = {1, 40};
  const std::pair<std::function<void(PrefixAttentionArgs&)>, std::string> cases[] = {
      {[](auto& a) { a.num_tokens = 1; }, "num_tokens = 1: must be 0 or cu_seqlens_q[num_seqs] = "},
      {[](auto& a) { a.seq_lens = lens; }, "seq_lens[0] = 1: must be at least the query length 2"},
      {[](auto& a) { a.scores.causal = false; }, "scores.causal = 0: must be true"},
      {[](auto& a) { a.k = nullptr; }, "k = null"},
      {[](auto& a) { a.v_stride = 15; }, "v_stride = 15: must be at least 16"},
      {[](auto& a) { a.block_table = nullptr; }, "block_table = null"},
      {[](auto& a) { a.max_blocks = 2; }, "context of seq_lens[1] = 38: must be at most"},
  };
  for (const auto& [spoil, message] : cases) {
    AttentionProblem p(
        {.heads = 4, .kv_heads = 2, .sequences = {{2, 3}, {2, 40}}, .context_only = true}, 1);
    std::vector<float> out(p.out_size());
    PrefixAttentionArgs args = p.PrefixArgs(out.data());
    EXPECT_TRUE(CheckArgs(args).ok()) << CheckArgs(args);
    spoil(args);
    const absl::Status status = CheckArgs(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }
}

TEST(CheckAttentionArgsTest, MergingNamesWhatIsMissing) {
  float x[4] = {};
  MergeAttentionStatesArgs args{
      .out_a = x, .lse_a = x, .out_b = x, .num_tokens = 1, .num_heads = 1, .dim = 4, .out = x};
  EXPECT_NE(CheckArgs(args).message().find("lse_b = null"), absl::string_view::npos);
  args.lse_b = x;
  EXPECT_TRUE(CheckArgs(args).ok());
  args.dim = 0;
  EXPECT_NE(CheckArgs(args).message().find("dim = 0"), absl::string_view::npos);
}

}  // namespace
}  // namespace baton
