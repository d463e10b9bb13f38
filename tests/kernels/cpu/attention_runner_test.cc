#include "kernels/cpu/attention_runner.h"

#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

TEST(AttentionRunnerTest, ADecodeCallFollowsALargerOneInTheSameMemory) {
  auto kernels = MakeTestKernels("auto", 2);
  AttentionProblem large(
      {.heads = 8, .kv_heads = 1, .dim = 64, .sequences = {{1, 4000}, {1, 900}, {1, 30}}}, 1);
  AttentionProblem small({.heads = 2, .kv_heads = 2, .dim = 8, .sequences = {{1, 600}}}, 2);
  for (AttentionProblem* p : {&large, &small, &large}) {
    GuardedFloats out(p->out_size()), lse(p->total_q * p->shape.heads);
    ASSERT_TRUE(
        kernels->PagedAttention(p->PagedArgs(out.data(), AttentionSplit::kAuto, lse.data())).ok());
    p->Check(out.values(), lse.values(), 100, "decode");
  }
}

TEST(AttentionRunnerTest, OneLongSequenceOfOneHeadIsDividedOverThreads) {
  // 4,000 keys are 8 partial states: with 4 threads all of them must see the scratch of their own.
  AttentionProblem p({.heads = 8, .kv_heads = 1, .dim = 64, .sequences = {{1, 4000}}}, 3);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    auto kernels = MakeTestKernels("auto", threads);
    GuardedFloats out(p.out_size());
    ASSERT_TRUE(kernels->PagedAttention(p.PagedArgs(out.data(), AttentionSplit::kAuto)).ok());
    results.push_back(out.values());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace baton
