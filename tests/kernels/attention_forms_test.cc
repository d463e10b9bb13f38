// Decode by every policy of splitting, and a prefix in the cache with new keys beside it.
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

class AttentionFormsTest : public LibraryTest {};

TEST_P(AttentionFormsTest, SplitPoliciesGiveTheSameBitsInEveryLayout) {
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

TEST_P(AttentionFormsTest, ContextInTheCacheAndNewKeysBesideItActAsOneSequence) {
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

TEST_P(AttentionFormsTest, DecodeRowsOfAPrefixCallMayBeLeftAlone) {
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

BATON_FOR_EACH_LIBRARY(AttentionFormsTest);

}  // namespace
}  // namespace baton
