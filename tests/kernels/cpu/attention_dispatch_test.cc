#include "kernels/cpu/attention_dispatch.h"

#include <functional>

#include "kernels/cpu/select_kernel_set.h"
#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

TEST(AttentionDispatchTest, TheFastKernelServesPlainHndCachesOnly) {
  float some[8] = {};
  const int32_t leftpad[1] = {};
  AttentionProblem p({.sequences = {{2, 20}}}, 1);
  const GenericAttentionArgs plain{.base = p.Args(some)};
  EXPECT_TRUE(FastAttentionServes(plain));
  const std::function<void(GenericAttentionArgs&)> changes[] = {
      [](auto& a) { a.base.k_cache.layout = a.base.v_cache.layout = CacheLayout::kNhd; },
      [](auto& a) { a.base.v_cache.token_stride = 9; },
      [&](auto& a) { a.base.dense.cu_seqlens_k = leftpad; },
      [&](auto& a) { a.base.scores.sinks = some; },
      [](auto& a) { a.sparsity.vert_stride = 2; },
      [&](auto& a) { a.leftpad = leftpad; },
  };
  for (const auto& change : changes) {
    GenericAttentionArgs args = plain;
    change(args);
    EXPECT_FALSE(FastAttentionServes(args));
  }
  GenericAttentionArgs args = plain;
  args.base.scores.local_chunk = 4;
  args.base.scores.alibi_slopes = some;
  args.sparsity.vert_stride = 1;
  EXPECT_TRUE(FastAttentionServes(args));
}

TEST(AttentionDispatchTest, TheReferencePolicyIsThatOfVllm) {
  const auto single = [](int64_t max_seq_len, int64_t seqs, int64_t heads) {
    return ReferenceSplit(max_seq_len, seqs, heads) == AttentionSplit::kSinglePass;
  };
  EXPECT_TRUE(single(512, 1, 1));  // One partition.
  EXPECT_FALSE(single(513, 1, 512));
  EXPECT_TRUE(single(513, 27, 19));
  EXPECT_TRUE(single(8192, 100, 40));
  EXPECT_FALSE(single(8193, 100, 40));
}

class AttentionKernelsTest : public KernelTest {};

TEST_P(AttentionKernelsTest, FastAndGenericAgreeWhereBothServe) {
  ThreadPool pool(2);
  const KernelSet* set = *SelectKernelSet(GetParam());
  AttentionRunner fast(set, &pool);
  GenericAttentionRunner generic(set, &pool);
  for (const auto kv : {DType::kF32, DType::kBF16, DType::kFp8E4M3}) {
    for (const int32_t chunk : {0, 100}) {
      AttentionProblem p({.heads = 6,
                          .kv_heads = 2,
                          .dim = 40,
                          .block_size = 16,
                          .kv = kv,
                          .sequences = {{5, 18}, {1, 37}, {0, 9}, {33, 700}, {3, 0}},
                          .scores = {.softcap = 20, .window_left = 90, .local_chunk = chunk},
                          .alibi = true,
                          .kv_scale = 0.5f,
                          .compute = kv == DType::kF32 ? kv : DType::kBF16},
                         3);
      for (const bool use_fast : {true, false}) {
        GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
        const VarlenAttentionArgs args = p.Args(out.data(), lse.data());
        if (use_fast) {
          fast.Run(args, AttentionSplit::kAuto);
        } else {
          generic.Run({.base = args});
        }
        EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
        p.Check(out.values(), lse.values(), 1000, use_fast ? "fast" : "generic");
      }
    }
  }
}

TEST_P(AttentionKernelsTest, SplitPoliciesGiveTheSameBitsInEveryLayout) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    AttentionProblem p({.heads = 4,
                        .kv_heads = 2,
                        .dim = 32,
                        .sequences = {{1, 1100}, {1, 3}, {1, 0}, {1, 513}},
                        .alibi = true,
                        .layout = layout},
                       8);
    std::vector<std::vector<float>> results;
    for (const auto split : {AttentionSplit::kAuto, AttentionSplit::kSinglePass,
                             AttentionSplit::kSplit, AttentionSplit::kReference}) {
      GuardedFloats out(p.out_size()), lse(p.total_q * 4);
      ASSERT_TRUE(kernels_->PagedAttention(p.PagedArgs(out.data(), split, lse.data())).ok());
      if (results.empty()) p.Check(out.values(), lse.values(), 100, "paged");
      results.push_back(out.values());
      EXPECT_EQ(results.back(), results.front());
    }
  }
}

TEST_P(AttentionKernelsTest, ContextInTheCacheAndNewKeysBesideItActAsOneSequence) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const auto kv : {DType::kF32, DType::kFp8E4M3}) {
      for (const int32_t left : {-1, 11}) {
        AttentionProblem p({.heads = 6,
                            .kv_heads = 2,
                            .dim = 32,
                            .block_size = 8,
                            .kv = kv,
                            .sequences = {{5, 18}, {1, 37}, {0, 9}, {33, 33}, {20, 600}},
                            .scores = {.softcap = 20, .window_left = left},
                            .alibi = true,
                            .kv_scale = 0.25f,
                            .scale_per_head = true,
                            .layout = layout,
                            .context_only = true},
                           4);
        GuardedFloats out(p.out_size()), lse(p.total_q * 6);
        const absl::Status status = kernels_->PrefixAttention(p.PrefixArgs(out.data(), lse.data()));
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
        p.Check(out.values(), lse.values(), 1000, "prefix");
      }
    }
  }
}

TEST_P(AttentionKernelsTest, DecodeRowsOfAPrefixCallMayBeLeftAlone) {
  AttentionProblem p({.sequences = {{2, 20}, {1, 30}, {3, 3}}, .context_only = true}, 4);
  GuardedFloats all(p.out_size()), some(p.out_size()), lse(p.total_q);
  ASSERT_TRUE(kernels_->PrefixAttention(p.PrefixArgs(all.data())).ok());
  PrefixAttentionArgs args = p.PrefixArgs(some.data(), lse.data());
  args.skip_decodes = true;
  ASSERT_TRUE(kernels_->PrefixAttention(args).ok());
  std::vector<float> expected = all.values();
  std::fill_n(expected.begin() + 2 * 8, 8, GuardedFloats::kCanary);
  EXPECT_EQ(some.values(), expected);
  EXPECT_EQ(lse.values()[2], GuardedFloats::kCanary);
  EXPECT_TRUE(std::isfinite(lse.values()[1]) && std::isfinite(lse.values()[3]));
}

BATON_FOR_EACH_KERNEL_SET(AttentionKernelsTest);

}  // namespace
}  // namespace baton
