// Scales of q, K and V per sequence and KV head, and of the output.
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

constexpr int32_t kScaledHeads = 4, kScaledKvHeads = 2;

// A problem whose loops in fp64 see q, K and V multiplied, while the operator gets the scales.
class ScaledProblem {
 public:
  explicit ScaledProblem(const AttentionShapes& shape, int64_t stride = 3)
      : problem(shape, 5), raw_q(problem.q) {
    const auto num_seqs = std::ssize(shape.sequences);
    Random random(9);
    for (std::vector<float>* x : {&q_descale, &k_descale, &v_descale}) {
      // What lies between rows is not looked at.
      x->assign(stride == 0 ? kScaledKvHeads : num_seqs * stride, NAN);
      for (int64_t s = 0; s < (stride == 0 ? 1 : num_seqs); ++s) {
        for (int64_t h = 0; h < kScaledKvHeads; ++h) {
          (*x)[s * stride + h] = 0.25f + static_cast<float>(random.Unit());
        }
      }
    }
    scales = {.q_descale = q_descale.data(),
              .k_descale = k_descale.data(),
              .v_descale = v_descale.data(),
              .stride = stride,
              .output_scale = 0.75f};
  }

  // What the loops read from now on.
  void Multiply() {
    AttentionProblem& p = problem;
    const int64_t group = p.shape.heads / p.shape.kv_heads;
    for (size_t s = 0; s < p.shape.sequences.size(); ++s) {
      const int64_t row = static_cast<int64_t>(s) * scales.stride;
      for (int64_t t = p.cu_q[s]; t < p.cu_q[s + 1]; ++t) {
        for (int64_t h = 0; h < p.shape.heads; ++h) {
          Times(&p.q[(t * p.shape.heads + h) * p.shape.dim], p.shape.dim,
                q_descale[row + h / group]);
        }
      }
      for (int64_t j = p.key_base[s]; j < p.key_base[s] + p.seq_lens[s]; ++j) {
        for (int64_t h = 0; h < p.shape.kv_heads; ++h) {
          Times(&p.k[(j * p.shape.kv_heads + h) * p.shape.dim], p.shape.dim, k_descale[row + h]);
          Times(&p.v[(j * p.shape.kv_heads + h) * p.shape.v_dim], p.shape.v_dim,
                v_descale[row + h] / scales.output_scale);
        }
      }
    }
  }

  AttentionProblem problem;
  std::vector<float> raw_q, q_descale, k_descale, v_descale;
  AttentionScales scales;

 private:
  static void Times(float* x, int64_t n, float by) {
    for (int64_t d = 0; d < n; ++d) x[d] *= by;
  }
};

class AttentionScalesTest : public LibraryTest {
 protected:
  template <typename Call>
  void Expect(ScaledProblem& scaled, const Call& call) {
    AttentionProblem& p = scaled.problem;
    GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
    const absl::Status status = call(out.data(), lse.data());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    scaled.Multiply();
    p.Check(out.values(), lse.values(), INT64_MAX, "scaled");
  }
};

AttentionShapes ScaledShapes(CacheLayout layout, DType kv, bool decode) {
  AttentionShapes s{.heads = kScaledHeads,
                    .kv_heads = kScaledKvHeads,
                    .dim = 16,
                    .kv = kv,
                    .sequences = {{3, 40}, {1, 600}, {0, 7}, {4, 4}},
                    .scores = {.softcap = 3},
                    .kv_scale = 0.5f,
                    .layout = layout};
  if (decode) s.sequences = {{1, 40}, {1, 600}, {1, 0}, {1, 4}};
  return s;
}

TEST_P(AttentionScalesTest, OfAPagedCacheActPerSequenceAndHead) {
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const DType kv : {DType::kF32, DType::kFp8E4M3, DType::kFp8E5M2}) {
      for (const int64_t stride : {2, 3, 0}) {
        SCOPED_TRACE(static_cast<int>(layout) * 100 + static_cast<int>(kv) * 10 + stride);
        ScaledProblem varlen(ScaledShapes(layout, kv, false), stride);
        Expect(varlen, [&](float* out, float* lse) {
          VarlenAttentionArgs args = varlen.problem.Args(out, lse);
          args.q = varlen.raw_q.data();
          args.scales = varlen.scales;
          return kernels_->VarlenAttention(args);
        });
        for (const bool two_passes : {false, true}) {
          ScaledProblem paged(ScaledShapes(layout, kv, true), stride);
          std::vector<float> sums(4 * kScaledHeads * 2), maxima(sums), tmp(sums.size() * 16);
          Expect(paged, [&](float* out, float* lse) {
            PagedAttentionArgs args = paged.problem.PagedArgs(out, AttentionSplit::kAuto, lse);
            args.q = paged.raw_q.data();
            args.scales = paged.scales;
            if (two_passes) args.partials = {sums.data(), maxima.data(), tmp.data(), 2};
            return kernels_->PagedAttention(args);
          });
        }
      }
    }
  }
}

TEST_P(AttentionScalesTest, OfDenseKeysActPerSequenceAndHead) {
  ScaledProblem dense(ScaledShapes(CacheLayout::kHnd, DType::kF32, false));
  Expect(dense, [&](float* out, float* lse) {
    VarlenAttentionArgs args = dense.problem.DenseArgs(out, lse);
    args.q = dense.raw_q.data();
    args.scales = dense.scales;
    return kernels_->VarlenAttention(args);
  });
}

// New K and V lie beside the cache and are multiplied as what it holds.
TEST_P(AttentionScalesTest, OfAPrefixActOnTheContextAndOnNewTokens) {
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const DType kv : {DType::kF32, DType::kFp8E4M3}) {
      for (const int64_t stride : {2, 3, 0}) {
        SCOPED_TRACE(static_cast<int>(layout) * 100 + static_cast<int>(kv) * 10 + stride);
        AttentionShapes shape = ScaledShapes(layout, kv, false);
        shape.context_only = true;
        ScaledProblem prefix(shape, stride);
        Expect(prefix, [&](float* out, float* lse) {
          PrefixAttentionArgs args = prefix.problem.PrefixArgs(out, lse);
          args.q = prefix.raw_q.data();
          args.scales = prefix.scales;
          return kernels_->PrefixAttention(args);
        });
      }
    }
  }
}

TEST_P(AttentionScalesTest, OfACacheThatIsAppendedToAreThoseOfWhatItHolds) {
  AttentionShapes shape = ScaledShapes(CacheLayout::kPacked, DType::kF32, false);
  shape.sequences = {{2, 40}, {2, 600}, {2, 2}};
  ScaledProblem scaled(shape);
  AttentionProblem& p = scaled.problem;
  // What the cache holds of the last two tokens is appended instead.
  const PrefixAttentionArgs fresh = p.PrefixArgs(nullptr);
  std::vector<int32_t> lens = {38, 598, 0};
  Expect(scaled, [&](float* out, float* lse) {
    const VarlenAttentionArgs args = p.Args(out, lse);
    return kernels_->AttentionWithKvCache({.q = scaled.raw_q.data(),
                                           .num_heads = kScaledHeads,
                                           .num_seqs = 3,
                                           .num_queries = 2,
                                           .k = fresh.k,
                                           .v = fresh.v,
                                           .num_new = 2,
                                           .k_cache = args.k_cache,
                                           .v_cache = args.v_cache,
                                           .cache_seqlens = lens.data(),
                                           .block_table = args.block_table,
                                           .max_blocks = args.max_blocks,
                                           .scores = args.scores,
                                           .scales = scaled.scales,
                                           .out = out,
                                           .lse = lse});
  });
}

// By hand: one query of (2, 0, ...), keys of (1, 0, ...) and 0 with values 4 and 8, a scale of 1.
// Scores are 2 * 0.5 * 1.5 = 1.5 and 0; the result is (4 e^1.5 + 8) / (e^1.5 + 1) * 3 / 2.
TEST_P(AttentionScalesTest, ASmallExampleByHand) {
  std::vector<float> q(8), k(16), v(16), out(8), lse(1);
  q[0] = 2;
  k[0] = 1;
  v[0] = 4;
  v[8] = 8;
  const float q_descale = 0.5f, k_descale = 1.5f, v_descale = 3;
  const int32_t cu_q[] = {0, 1}, cu_k[] = {0, 2};
  ASSERT_TRUE(kernels_
                  ->VarlenAttention({.q = q.data(),
                                     .q_stride = 8,
                                     .num_heads = 1,
                                     .num_seqs = 1,
                                     .cu_seqlens_q = cu_q,
                                     .dense = {.k = k.data(),
                                               .k_stride = 8,
                                               .v = v.data(),
                                               .v_stride = 8,
                                               .num_heads = 1,
                                               .k_dim = 8,
                                               .v_dim = 8,
                                               .cu_seqlens_k = cu_k},
                                     .scores = {.scale = 1},
                                     .scales = {.q_descale = &q_descale,
                                                .k_descale = &k_descale,
                                                .v_descale = &v_descale,
                                                .output_scale = 2},
                                     .out = out.data(),
                                     .out_stride = 8,
                                     .lse = lse.data(),
                                     .lse_stride = 1})
                  .ok());
  EXPECT_NEAR(out[0], (4 * std::exp(1.5) + 8) / (std::exp(1.5) + 1) * 1.5, 1e-5);
  EXPECT_NEAR(lse[0], std::log(std::exp(1.5) + 1), 1e-6);
}

TEST_P(AttentionScalesTest, WhatIsNoScaleIsRefusedByName) {
  ScaledProblem scaled(ScaledShapes(CacheLayout::kPacked, DType::kF32, true));
  GuardedFloats out(scaled.problem.out_size());
  const auto refused = [&](auto change, const std::string& message) {
    PagedAttentionArgs args = scaled.problem.PagedArgs(out.data(), AttentionSplit::kAuto);
    args.scales = scaled.scales;
    change(args.scales);
    const absl::Status status = kernels_->PagedAttention(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
  };
  AttentionShapes shape = ScaledShapes(CacheLayout::kHnd, DType::kF32, false);
  shape.context_only = true;
  ScaledProblem prefix(shape);
  const auto refused_prefix = [&](auto change, const std::string& message) {
    GuardedFloats rows(prefix.problem.out_size());
    PrefixAttentionArgs args = prefix.problem.PrefixArgs(rows.data());
    args.scales = prefix.scales;
    change(args.scales);
    const absl::Status status = kernels_->PrefixAttention(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    for (const float x : rows.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
  };
  refused_prefix([](auto& s) { s.stride = 1; }, "scales.stride = 1: must be 0 or at least");
  refused_prefix([](auto& s) { s.output_scale = -1; }, "scales.output_scale = -1");
  prefix.v_descale[4] = 0;
  refused_prefix([](auto&) {}, "scales.v_descale[1][1] = 0: must be finite and greater than 0");
  refused([](auto& s) { s.stride = 1; },
          "scales.stride = 1: must be 0 or at least the heads of K and V, 2");
  refused([](auto& s) { s.stride = INT64_MAX; }, "scales.stride = 9223372036854775807");
  refused([](auto& s) { s.stride = -2; }, "scales.stride = -2");
  refused([](auto& s) { s.output_scale = 0; },
          "scales.output_scale = 0: must be finite and greater than 0");
  refused([](auto& s) { s.output_scale = NAN; }, "scales.output_scale = nan");
  scaled.k_descale[2 * 3 + 1] = -1;
  refused([](auto&) {}, "scales.k_descale[2][1] = -1: must be finite and greater than 0");
  scaled.k_descale[2 * 3 + 1] = 1;
  scaled.v_descale[3] = INFINITY;
  refused([](auto&) {}, "scales.v_descale[1][0] = inf");
  scaled.q_descale[0] = 0;
  refused([](auto&) {}, "scales.q_descale[0][0] = 0");
}

BATON_FOR_EACH_LIBRARY(AttentionScalesTest);

}  // namespace
}  // namespace baton
