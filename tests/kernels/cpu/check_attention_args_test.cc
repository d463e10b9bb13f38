#include <functional>

#include "kernels/cpu/check_args.h"
#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

TEST(CheckAttentionArgsTest, DecodeNamesTheFieldAndWhatIsAllowed) {
  float out[2 * 4 * 8];
  using Break = std::function<void(PagedAttentionArgs&)>;
  static float infinite = INFINITY;
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
