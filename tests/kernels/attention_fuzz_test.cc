// Random arguments of attention over a paged cache, plausible and hostile, as op_fuzz_test.cc has
// them of the other forms. BATON_FUZZ_SEED and BATON_FUZZ_CASES choose others.
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

class AttentionFuzzTest : public FuzzTest {
 protected:
  // An enumerator that is none of the first `n`.
  template <typename Enum>
  Enum NoSuch(int64_t n) {
    return static_cast<Enum>(n + Below(200));
  }
};

TEST_P(AttentionFuzzTest, PlausibleAttentionIsCorrect) {
  const int64_t cases = FuzzCases();
  const int64_t first = FirstFuzzSeed();
  auto threaded = MakeFuzzed(GetParam(), 3);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    const bool decode = Chance(40);
    AttentionProblem p(Served(RandomAttention(random_, decode), seed), seed);
    GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
    const absl::Status status =
        decode ? threaded->PagedAttention(
                     p.PagedArgs(out.data(), static_cast<AttentionSplit>(Below(3)), lse.data()))
               : threaded->VarlenAttention(p.Args(out.data(), lse.data()));
    ASSERT_TRUE(HasRun(status)) << status;
    ASSERT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    p.Check(out.values(), lse.values(), 10, "fuzz");
    if (HasFailure()) return;
  }
}

// The new operators with one wrong field: refused before anything is written, or, where another
// value is legal, without a byte outside the destination.
TEST_P(AttentionFuzzTest, HostileDecodeAndPrefixArgumentsAreRefusedOrHarmless) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    const bool prefix = Chance(50);
    const AttentionShapes shapes{.heads = 4,
                                 .kv_heads = 2,
                                 .sequences = {{1, 20}, {1, 33}},
                                 .layout = static_cast<CacheLayout>(Below(3)),
                                 .sparsity = {.vert_stride = prefix ? 0 : 2, .block_size = 16},
                                 .context_only = prefix};
    AttentionProblem p(Served(shapes, seed), 1);
    GuardedFloats out(p.out_size()), lse(p.total_q * 4);
    PagedAttentionArgs paged = p.PagedArgs(out.data(), AttentionSplit::kAuto, lse.data());
    PrefixAttentionArgs fresh = p.PrefixArgs(out.data(), lse.data());
    const auto spoil_shared = [&](auto& args, int64_t what) {
      if (what == 0) Spoil(p.seq_lens[Below(2)]);
      if (what == 1) Spoil(args.num_heads);
      if (what == 2) args.k_cache.layout = static_cast<CacheLayout>(3 + Below(200));
      if (what == 3) Spoil(args.v_cache.head_stride);
      if (what == 4) Spoil(args.k_cache.token_stride);
      if (what == 5) Spoil(args.scores.local_chunk);
      if (what == 10) args.round_to = NoSuch<DType>(3);
      if (what == 11) args.k_cache.dtype = args.v_cache.dtype = NoSuch<DType>(5);
    };
    const int64_t what = Below(13);
    spoil_shared(paged, what);
    spoil_shared(fresh, what);
    if (what == 6) Spoil(paged.sparsity.block_size);
    if (what == 7) Spoil(paged.sparsity.head_sliding_step);
    if (what == 8) Spoil(paged.sparsity.tp_rank);
    if (what == 9) Spoil(paged.sparsity.local_blocks);
    if (what == 12) paged.split = NoSuch<AttentionSplit>(4);
    const absl::Status status =
        prefix ? kernels_->PrefixAttention(fresh) : kernels_->PagedAttention(paged);
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    ASSERT_FALSE(status.ok() && (what == 10 || what == 11 || (what == 12 && !prefix)));
    if (HasRun(status)) continue;
    ASSERT_TRUE(Lacks(status) || absl::IsInvalidArgument(status)) << status;
    for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
  }
}

TEST_P(AttentionFuzzTest, HostileAttentionIsRefusedOrHarmless) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    const AttentionShapes shapes{
        .heads = 4, .kv_heads = 2, .sequences = {{3, 20}, {1, 33}, {0, 5}}};
    AttentionProblem p(Served(shapes, seed), 1);
    GuardedFloats out(p.out_size()), lse(p.total_q * 4);
    VarlenAttentionArgs args = p.Args(out.data(), lse.data());
    // Only what makes the arguments wrong: a larger count that agrees with everything else cannot
    // be told from a true one.
    const int64_t what = Below(12);
    switch (what) {
      case 0:
        Spoil(p.table[Below(2) * p.max_blocks]);
        break;
      case 1:
        Spoil(p.seq_lens[Below(2)]);
        break;
      case 2:
        Spoil(p.cu_q[1]);
        break;
      case 3:
        Spoil(args.num_heads);
        break;
      case 4:
        Spoil(args.k_cache.block_stride);
        args.k_cache.block_stride |= int64_t{1} << 62;
        break;
      case 5:
        Spoil(args.k_cache.dim);
        args.q_stride = 32;
        break;
      case 6:
        Spoil(args.v_cache.num_heads);
        break;
      case 7:
        Spoil(args.scores.window_left);
        break;
      case 8:
        Spoil(args.scores.window_right);
        break;
      case 9:
        Spoil(args.k_cache.block_size);
        break;
      case 10:
        Spoil(args.max_blocks);
        break;
      case 11:
        Spoil(args.v_cache.num_blocks);
        break;
    }
    // Fewer entries per row would give a sequence the blocks of another.
    if (args.max_blocks != p.max_blocks) args.num_seqs = 1;
    const absl::Status status = kernels_->VarlenAttention(args);
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    if (HasRun(status)) {
      // Another block, or another place in it, as the arguments say: it holds poison.
      if (what == 0 || what == 5) continue;
      for (const float x : out.values()) ASSERT_FALSE(std::isnan(x));
    } else {
      ASSERT_TRUE(Lacks(status) || absl::IsInvalidArgument(status)) << status;
      for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
    }
  }
}

BATON_FOR_EACH_FUZZED(AttentionFuzzTest);

}  // namespace
}  // namespace baton
