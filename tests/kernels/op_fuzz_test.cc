// Random operator arguments, plausible and hostile: a correct result or a Status, never a read of
// poison (it would show as a NaN) or a write outside the destination. BATON_FUZZ_SEED and
// BATON_FUZZ_CASES choose others.
#include <cstdlib>

#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

constexpr int64_t kHostile[] = {-1,      0,         1,         -7,        3,
                                1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};

class OpFuzzTest : public KernelTest {
 protected:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_.Below(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T>
  void Spoil(T& value) {
    value = static_cast<T>(kHostile[Below(std::size(kHostile))]);
  }

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

  Random random_{0};
};

TEST_P(OpFuzzTest, PlausibleAttentionIsCorrect) {
  const int64_t cases = FromEnvironment("BATON_FUZZ_CASES", 60);
  const int64_t first = FromEnvironment("BATON_FUZZ_SEED", 1);
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
  const int64_t cases = 10 * FromEnvironment("BATON_FUZZ_CASES", 60);
  const int64_t first = FromEnvironment("BATON_FUZZ_SEED", 1);
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

TEST_P(OpFuzzTest, BlockCopiesStayInTheirBlocksOrAreRefused) {
  const int64_t first = FromEnvironment("BATON_FUZZ_SEED", 1);
  const int64_t cases = 10 * FromEnvironment("BATON_FUZZ_CASES", 60);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    // Source bytes are 1, destination bytes 2, gaps 3.
    CachePlane from{.dtype = static_cast<DType>(Below(5)),
                    .num_blocks = 1 + Below(6),
                    .num_heads = static_cast<int32_t>(1 + Below(3)),
                    .block_size = static_cast<int32_t>(1 + Below(5)),
                    .dim = static_cast<int32_t>(1 + Below(9))};
    const int64_t block = int64_t{from.num_heads} * from.block_size * from.dim;
    from.block_stride = block + Below(3);
    CachePlane to = from;
    to.num_blocks = 1 + Below(6);
    to.block_stride = block + Below(3);
    const int64_t size = SizeOf(from.dtype);
    std::vector<std::byte> source(from.num_blocks * from.block_stride * size, std::byte{1});
    std::vector<std::byte> target(to.num_blocks * to.block_stride * size, std::byte{3});
    for (int64_t b = 0; b < to.num_blocks; ++b) {
      std::fill_n(target.begin() + b * to.block_stride * size, block * size, std::byte{2});
    }
    from.data = source.data();
    to.data = target.data();
    BlockRun runs[2];
    for (BlockRun& run : runs) {
      run = {Below(7), Below(7), Below(4)};
      if (Chance(10)) Spoil(run.source);
      if (Chance(10)) Spoil(run.destination);
      if (Chance(10)) Spoil(run.count);
    }
    SwapBlocksArgs args{
        .sources = &from, .destinations = &to, .num_planes = 1, .runs = runs, .num_runs = 2};
    if (Chance(50)) {
      args.heads = {static_cast<int32_t>(Below(3)), static_cast<int32_t>(Below(3)),
                    static_cast<int32_t>(Below(4))};
    }
    const absl::Status status = kernels_->SwapBlocks(args);
    const int64_t heads = args.heads.count == 0 ? from.num_heads : args.heads.count;
    const int64_t copied =
        status.ok() ? (runs[0].count + runs[1].count) * heads * from.block_size * from.dim * size
                    : 0;
    EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{1}), copied) << status;
    for (int64_t b = 0; b < to.num_blocks; ++b) {
      const auto gap = target.begin() + (b * to.block_stride + block) * size;
      EXPECT_EQ(std::count(gap, gap + (to.block_stride - block) * size, std::byte{3}),
                (to.block_stride - block) * size);
    }
    if (HasFailure()) return;
  }
}

BATON_FOR_EACH_KERNEL_SET(OpFuzzTest);

}  // namespace
}  // namespace baton
