// PagedAttention in two passes through partials of the caller's, against loops in fp64: what the
// first pass leaves, and the result.
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

// What the first pass should leave of one partition.
struct Expected {
  double max = -INFINITY;
  double sum = 0;
  std::vector<double> values;
};

double ScoreOf(const AttentionProblem& p, size_t s, int32_t head, int64_t j) {
  const int64_t kv_head = head / (p.shape.heads / p.shape.kv_heads);
  double x = 0;
  for (int64_t d = 0; d < p.shape.dim; ++d) {
    x += double{p.q[(s * p.shape.heads + head) * p.shape.dim + d]} *
         double{p.k[((p.key_base[s] + j) * p.shape.kv_heads + kv_head) * p.shape.dim + d]};
  }
  x /= std::sqrt(static_cast<double>(p.shape.dim));
  const double cap = p.shape.scores.softcap;
  if (cap > 0) x = cap * std::tanh(x / cap);
  if (p.shape.alibi) x -= double{p.slopes[head]} * static_cast<double>(p.seq_lens[s] - 1 - j);
  return x;
}

Expected PartitionOf(const AttentionProblem& p, size_t s, int32_t head, int64_t partition) {
  Expected e{.values = std::vector<double>(p.shape.v_dim)};
  const int64_t kv_head = head / (p.shape.heads / p.shape.kv_heads);
  const int64_t end = std::min<int64_t>(p.seq_lens[s], 512 * (partition + 1));
  const auto seen = [&](int64_t j) { return p.Sees(s, 0, j) && p.SparseSees(s, head, j); };
  for (int64_t j = 512 * partition; j < end; ++j) {
    if (seen(j)) e.max = std::max(e.max, ScoreOf(p, s, head, j));
  }
  for (int64_t j = 512 * partition; j < end; ++j) {
    if (!seen(j)) continue;
    const double weight = std::exp(ScoreOf(p, s, head, j) - e.max);
    e.sum += weight;
    const int64_t row = (p.key_base[s] + j) * p.shape.kv_heads + kv_head;
    for (int64_t d = 0; d < p.shape.v_dim; ++d) {
      e.values[d] += weight * double{p.v[row * p.shape.v_dim + d]};
    }
  }
  return e;
}

class AttentionPartialsTest : public LibraryTest {
 protected:
  // The caller's memory, with room for one partition more than any sequence has.
  struct Partials {
    explicit Partials(const AttentionProblem& p)
        : partitions((p.seq_lens.empty() ? 0 : Longest(p) + 511) / 512 + 1),
          sums(p.total_q * p.shape.heads * partitions),
          maxima(p.total_q * p.shape.heads * partitions),
          out(p.total_q * p.shape.heads * partitions * p.shape.v_dim) {}
    static int64_t Longest(const AttentionProblem& p) {
      return *std::max_element(p.seq_lens.begin(), p.seq_lens.end());
    }
    AttentionPartials args() {
      return {.exp_sums = sums.data(),
              .max_logits = maxima.data(),
              .tmp_out = out.data(),
              .max_num_partitions = partitions};
    }
    int64_t partitions;
    GuardedFloats sums, maxima, out;
  };

  void ExpectPartials(const AttentionProblem& p, Partials& partials) {
    ASSERT_TRUE(partials.sums.GuardsIntact() && partials.maxima.GuardsIntact() &&
                partials.out.GuardsIntact());
    for (size_t s = 0; s < p.shape.sequences.size(); ++s) {
      for (int32_t h = 0; h < p.shape.heads; ++h) {
        for (int64_t i = 0; i < partials.partitions; ++i) {
          const int64_t at = (s * p.shape.heads + h) * partials.partitions + i;
          const float max = partials.maxima.data()[at], sum = partials.sums.data()[at];
          const float* values = partials.out.data() + at * p.shape.v_dim;
          if (512 * i >= p.seq_lens[s]) {  // Not written.
            ASSERT_EQ(max, GuardedFloats::kCanary);
            ASSERT_EQ(sum, GuardedFloats::kCanary);
            ASSERT_EQ(values[p.shape.v_dim - 1], GuardedFloats::kCanary);
            continue;
          }
          const Expected e = PartitionOf(p, s, h, i);
          if (e.sum == 0) {
            ASSERT_EQ(max, -INFINITY);
          } else {
            ASSERT_NEAR(max, e.max, 1e-5 * (1 + std::fabs(e.max)));
          }
          ASSERT_NEAR(sum, e.sum, 1e-4 * (e.sum + 1e-3)) << "partition " << i;
          for (int64_t d = 0; d < p.shape.v_dim; ++d) {
            ASSERT_NEAR(values[d], e.values[d], 1e-4 * (e.sum + 1e-3));
          }
        }
      }
    }
  }

  void Run(const AttentionShapes& shape) {
    AttentionProblem p(shape, 11);
    Partials partials(p);
    GuardedFloats out(p.out_size()), lse(p.total_q * shape.heads), single(p.out_size());
    PagedAttentionArgs args = p.PagedArgs(out.data(), AttentionSplit::kSplit, lse.data());
    args.partials = partials.args();
    const absl::Status status = threaded_->PagedAttention(args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    p.Check(out.values(), lse.values(), INT64_MAX, "two passes");
    ExpectPartials(p, partials);
    ASSERT_TRUE(
        kernels_->PagedAttention(p.PagedArgs(single.data(), AttentionSplit::kSinglePass)).ok());
    EXPECT_EQ(std::memcmp(single.data(), out.data(), p.out_size() * 4), 0);
  }

  std::unique_ptr<CpuKernels> threaded_ = MakeLibrary(GetParam(), 3);
};

TEST_P(AttentionPartialsTest, OfEveryLayoutAndCacheTypeAreWhatALoopFinds) {
  for (const CacheLayout layout : {CacheLayout::kPacked, CacheLayout::kNhd, CacheLayout::kHnd}) {
    for (const DType kv :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3, DType::kFp8E5M2}) {
      SCOPED_TRACE(static_cast<int>(layout) * 10 + static_cast<int>(kv));
      Run({.heads = 2,
           .kv_heads = 1,
           .dim = 16,
           .kv = kv,
           .sequences = {{1, 1}, {1, 511}, {1, 512}, {1, 513}, {1, 1100}, {1, 0}},
           .kv_scale = 0.5f,
           .layout = layout});
    }
  }
}

TEST_P(AttentionPartialsTest, OfEveryOptionAreWhatALoopFinds) {
  const AttentionShapes plain{.heads = 4,
                              .kv_heads = 2,
                              .dim = 16,
                              .sequences = {{1, 40}, {1, 1600}},
                              .layout = CacheLayout::kPacked};
  AttentionShapes s = plain;
  s.scores.window_left = 600;  // The first partition sees nothing.
  Run(s);
  s = plain;
  s.scores.softcap = 2;
  s.alibi = true;
  Run(s);
  s = plain;
  s.sinks = true;  // In no partial.
  s.v_dim = 32;
  Run(s);
  s = plain;
  s.sparsity = {.vert_stride = 50, .local_blocks = 1, .block_size = 16, .head_sliding_step = 1};
  Run(s);
}

TEST_P(AttentionPartialsTest, TheReferencesChoiceOfASinglePassLeavesThemAlone) {
  AttentionProblem p({.heads = 2, .kv_heads = 1, .sequences = {{1, 40}, {1, 512}}}, 3);
  Partials partials(p);
  std::vector<float> out(p.out_size());
  PagedAttentionArgs args = p.PagedArgs(out.data(), AttentionSplit::kReference);
  args.partials = partials.args();
  ASSERT_TRUE(kernels_->PagedAttention(args).ok());
  EXPECT_EQ(partials.sums.data()[0], GuardedFloats::kCanary);
  args.max_seq_len = 513;  // Two partitions, and few heads.
  ASSERT_TRUE(kernels_->PagedAttention(args).ok());
  EXPECT_NE(partials.sums.data()[0], GuardedFloats::kCanary);
}

TEST_P(AttentionPartialsTest, WhatIsMissingOrTooSmallIsRefusedByName) {
  AttentionProblem p({.heads = 2, .kv_heads = 1, .sequences = {{1, 1025}}}, 3);
  Partials partials(p);
  GuardedFloats out(p.out_size());
  PagedAttentionArgs args = p.PagedArgs(out.data(), AttentionSplit::kAuto);
  args.partials = partials.args();
  const auto refused = [&](auto change, const std::string& message) {
    PagedAttentionArgs wrong = args;
    change(wrong);
    const absl::Status status = kernels_->PagedAttention(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
    for (const float x : partials.sums.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
  };
  refused([](auto& a) { a.partials.exp_sums = nullptr; }, "partials.exp_sums = null");
  refused([](auto& a) { a.partials.max_logits = nullptr; }, "partials.max_logits = null");
  refused([](auto& a) { a.partials.tmp_out = nullptr; }, "partials.tmp_out = null");
  refused([](auto& a) { a.partials.max_num_partitions = 2; },
          "partials.max_num_partitions = 2: must be in [3, 2147483647]: partitions of 512 keys "
          "with max_seq_len = 1025");
  refused([](auto& a) { a.partials.max_num_partitions = INT64_MAX; },
          "partials.max_num_partitions = 9223372036854775807");
  refused([](auto& a) { a.split = AttentionSplit::kSinglePass; },
          "split = 1: must be AUTO, SPLIT or REFERENCE with partials");
  refused([](auto& a) { a.max_seq_len = 1024; }, "max_seq_len = 1024: must be at least");
  p.table[1] = -1;
  refused([](auto&) {}, "block_tables[0][1] = -1");
}

BATON_FOR_EACH_LIBRARY(AttentionPartialsTest);

}  // namespace
}  // namespace baton
