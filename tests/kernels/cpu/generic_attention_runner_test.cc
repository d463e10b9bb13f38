#include "kernels/cpu/generic_attention_runner.h"

#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

TEST(GenericAttentionRunnerTest, CallsOfDifferentSizesFollowEachOtherInTheSameMemory) {
  auto kernels = MakeTestKernels("auto", 3);
  AttentionProblem large({.heads = 8,
                          .kv_heads = 1,
                          .dim = 64,
                          .sequences = {{1, 1500}, {70, 900}, {1, 30}},
                          .layout = CacheLayout::kNhd},
                         1);
  AttentionProblem small(
      {.heads = 2, .kv_heads = 2, .dim = 8, .sequences = {{2, 600}, {0, 3}}, .sinks = true}, 2);
  for (AttentionProblem* p : {&large, &small, &large}) {
    GuardedFloats out(p->out_size()), lse(p->total_q * p->shape.heads);
    ASSERT_TRUE(kernels->VarlenAttention(p->Args(out.data(), lse.data())).ok());
    p->Check(out.values(), lse.values(), 60, "one after the other");
  }
}

TEST(GenericAttentionRunnerTest, ThreadsDoNotChangeBits) {
  AttentionProblem p({.heads = 6,
                      .kv_heads = 3,
                      .dim = 48,
                      .sequences = {{40, 700}, {1, 300}},
                      .layout = CacheLayout::kPacked},
                     3);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    auto kernels = MakeTestKernels("auto", threads);
    GuardedFloats out(p.out_size());
    ASSERT_TRUE(kernels->VarlenAttention(p.Args(out.data())).ok());
    results.push_back(out.values());
    EXPECT_EQ(results.back(), results.front());
  }
}

}  // namespace
}  // namespace baton
