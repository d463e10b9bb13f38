// Random operator arguments, plausible and hostile: a correct result or a Status, never a read of
// poison (it would show as a NaN) or a write outside the destination. BATON_FUZZ_SEED and
// BATON_FUZZ_CASES choose others.
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

class OpFuzzTest : public FuzzTest {
 protected:
  AttentionShapes RandomShapes(bool decode) {
    AttentionShapes s;
    s.kv_heads = static_cast<int32_t>(1 + Below(3));
    s.heads = s.kv_heads * static_cast<int32_t>(1 + Below(14));
    s.dim = static_cast<int32_t>(Chance(80) ? 8 * (1 + Below(16)) : 1 + Below(256));
    s.v_dim = Chance(80) ? s.dim : static_cast<int32_t>(1 + Below(256));
    s.block_size = static_cast<int32_t>(1 + Below(Chance(50) ? 16 : 256));
    s.kv = static_cast<DType>(Below(5));
    s.compute = static_cast<DType>(Below(3));
    s.kv_scale = Chance(50) ? 0.25f : 0;
    s.scale_per_head = Chance(50);
    s.alibi = Chance(20);
    s.scores.causal = Chance(70);
    if (Chance(40)) s.scores.window_left = static_cast<int32_t>(Below(600));
    if (Chance(20)) s.scores.window_right = static_cast<int32_t>(Below(40));
    if (Chance(20)) s.scores.softcap = 20;
    for (int64_t n = 1 + Below(4); n > 0; --n) {
      const auto keys = static_cast<int32_t>(Below(Chance(20) ? 1200 : 90));
      s.sequences.push_back({decode ? 1 : static_cast<int32_t>(Below(30)), keys});
    }
    return s;
  }
};

TEST_P(OpFuzzTest, PlausibleAttentionIsCorrect) {
  const int64_t cases = FuzzCases();
  const int64_t first = FirstFuzzSeed();
  auto threaded = MakeTestKernels(GetParam(), 3);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    const bool decode = Chance(40);
    AttentionProblem p(RandomShapes(decode), seed);
    GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
    const absl::Status status =
        decode ? threaded->PagedAttention(
                     p.PagedArgs(out.data(), static_cast<AttentionSplit>(Below(3)), lse.data()))
               : threaded->VarlenAttention(p.Args(out.data(), lse.data()));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    p.Check(out.values(), lse.values(), 10, "fuzz");
    if (HasFailure()) return;
  }
}

TEST_P(OpFuzzTest, HostileAttentionIsRefusedOrHarmless) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{3, 20}, {1, 33}, {0, 5}}}, 1);
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
    if (status.ok()) {
      // Another block, or another place in it, as the arguments say: it holds poison.
      if (what == 0 || what == 5) continue;
      for (const float x : out.values()) ASSERT_FALSE(std::isnan(x));
    } else {
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
    }
  }
}

BATON_FOR_EACH_KERNEL_SET(OpFuzzTest);

}  // namespace
}  // namespace baton
