#include "kernels/cpu/attention_dispatch.h"

#include <functional>

#include "kernels/api/attention_split.h"
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

BATON_FOR_EACH_KERNEL_SET(AttentionKernelsTest);

}  // namespace
}  // namespace baton
