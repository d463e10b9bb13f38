// No operator of a step allocates once its scratch has grown. Counts the allocations of this whole
// test program; the sanitizers bring their own operator new, so there the count stays zero.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/kernels/moe_problem.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

#if !defined(BATON_SANITIZED)
// GCC does not see that both of the pair are replaced.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(size);
  if (p == nullptr) std::abort();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace baton {
namespace {

class StepAllocationsTest : public KernelTest {};

TEST_P(StepAllocationsTest, OperatorsDoNotAllocateAfterTheirFirstCall) {
#if defined(BATON_SANITIZED)
  GTEST_SKIP() << "the sanitizers count for themselves";
#endif
  const auto kernels = MakeTestKernels(GetParam(), 3);
  const int64_t m = 40, n = 512, k = 256;
  const std::vector<std::byte> stored = Encode(DType::kBF16, RandomFloats(1, n * k));
  const WeightRows part{stored.data(), DType::kBF16, n};
  const PackedMatrix weights = *kernels->PackWeights({.parts = &part, .num_parts = 1, .k = k});
  std::vector<float> x = RandomFloats(2, m * k);
  std::vector<float> out(m * n);
  const auto step = [&](DType compute) {
    bool ok = kernels
                  ->RmsNorm({.x = x.data(),
                             .x_stride = k,
                             .num_tokens = m,
                             .dim = k,
                             .weight = x.data(),
                             .eps = 1e-5f,
                             .round_to = compute,
                             .out = x.data(),
                             .out_stride = k})
                  .ok();
    ok = ok && kernels
                   ->Gemm({.a = x.data(),
                           .a_stride = k,
                           .m = m,
                           .a_rounded_to = compute,
                           .weights = &weights,
                           .out = out.data(),
                           .out_stride = n})
                   .ok();
    return ok && kernels
                     ->ActivationAndMul({.gate_up = out.data(),
                                         .num_tokens = m,
                                         .dim = n / 2,
                                         .round_to = compute,
                                         .out = x.data()})
                     .ok();
  };
  ASSERT_TRUE(step(DType::kF32) && step(DType::kBF16));
  const int64_t before = num_allocations.load();
  const bool ok = step(DType::kF32) && step(DType::kBF16);
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

TEST_P(StepAllocationsTest, LayersOfExpertsDoNotAllocateAfterTheirFirstCall) {
#if defined(BATON_SANITIZED)
  GTEST_SKIP() << "the sanitizers count for themselves";
#endif
  const auto kernels = MakeTestKernels(GetParam(), 3);
  const int64_t tokens = 40, experts = 6, dim = 96, ffn = 64;
  const std::vector<float> x = RandomFloats(1, tokens * dim);
  const auto weights = [&](int64_t n, int64_t k) {
    return PackExperts(*kernels, n, k, DType::kBF16, RandomFloats(n, experts * n * k));
  };
  MoeLayer layer{
      .dim = dim, .ffn = ffn, .gate_up = weights(2 * ffn, dim), .down = weights(dim, ffn)};
  std::vector<float> out(tokens * dim);
  const auto step = [&] {
    return layer
        .Run(*kernels,
             {.logits = x.data(),
              .logits_stride = dim,
              .num_tokens = tokens,
              .num_experts = experts,
              .top_k = 2},
             x.data(), nullptr, out.data())
        .ok();
  };
  ASSERT_TRUE(step());
  const int64_t before = num_allocations.load();
  const bool ok = step();
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

BATON_FOR_EACH_KERNEL_SET(StepAllocationsTest);

}  // namespace
}  // namespace baton
