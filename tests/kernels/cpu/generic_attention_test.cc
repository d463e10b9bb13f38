// What the generic kernel adds to the fast one: layouts, dense K and V, sinks, block sparsity.
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

const std::vector<std::pair<int32_t, int32_t>> kMixed = {{5, 18}, {1, 37}, {0, 9},  {33, 40},
                                                         {1, 1},  {3, 0},  {2, 530}};

std::string LayoutName(CacheLayout layout) {
  return layout == CacheLayout::kHnd ? "HND" : layout == CacheLayout::kNhd ? "NHD" : "PACKED";
}

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result& other) const = default;
};

class GenericAttentionTest : public LibraryTest {
 protected:
  // Calls `run` with guarded outputs.
  template <typename Run>
  Result Guarded(const AttentionProblem& p, Run run) {
    GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
    const absl::Status status = run(out.data(), lse.data());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    return {out.values(), lse.values()};
  }
  Result Varlen(AttentionProblem& p) {
    return Guarded(
        p, [&](float* out, float* lse) { return kernels_->VarlenAttention(p.Args(out, lse)); });
  }
  Result Paged(AttentionProblem& p, AttentionSplit split = AttentionSplit::kAuto) {
    return Guarded(p, [&](float* out, float* lse) {
      return kernels_->PagedAttention(p.PagedArgs(out, split, lse));
    });
  }
  void CheckVarlen(const AttentionShapes& shape, const std::string& what) {
    AttentionProblem p(shape, 21);
    const Result r = Varlen(p);
    p.Check(r.out, r.lse, 1000, what);
  }
  void CheckPaged(const AttentionShapes& shape, const std::string& what) {
    AttentionProblem p(shape, 22);
    const Result r = Paged(p);
    p.Check(r.out, r.lse, 1000, what);
  }
};

TEST_P(GenericAttentionTest, EveryLayoutAndTypeAgreesWithADoubleLoop) {
  for (const auto layout : {CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const auto kv :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3, DType::kFp8E5M2}) {
      for (const bool per_head : {false, true}) {
        if (per_head && !IsFp8(kv)) continue;
        CheckVarlen({.heads = 6,
                     .kv_heads = 2,
                     .dim = 48,
                     .block_size = 8,
                     .kv = kv,
                     .sequences = kMixed,
                     .kv_scale = 0.25f,
                     .scale_per_head = per_head,
                     .compute = kv == DType::kF32 ? kv : DType::kBF16,
                     .layout = layout},
                    LayoutName(layout) + " " + std::string(ToString(kv)));
      }
    }
  }
}

TEST_P(GenericAttentionTest, TheTableMayBeRagged) {
  AttentionProblem p({.heads = 4,
                      .kv_heads = 2,
                      .sequences = {{5, 60}, {1, 37}, {3, 0}, {2, 90}},
                      .scores = {.window_left = 20},
                      .layout = CacheLayout::kNhd},
                     5);
  const Result expected = Varlen(p);
  const AttentionProblem::RaggedTable ragged = p.Ragged();
  EXPECT_EQ(Guarded(p,
                    [&](float* out, float* lse) {
                      VarlenAttentionArgs args = p.Args(out, lse);
                      args.block_table = ragged.entries.data();
                      args.table_starts = ragged.starts.data();
                      return kernels_->VarlenAttention(args);
                    }),
            expected);
}

TEST_P(GenericAttentionTest, RowsWithGapsBetweenThemAreReadByTheirStrides) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd}) {
    CheckVarlen({.heads = 4,
                 .kv_heads = 2,
                 .dim = 20,
                 .block_size = 4,
                 .kv = DType::kF16,
                 .sequences = kMixed,
                 .compute = DType::kF16,
                 .v_dim = 12,
                 .layout = layout,
                 .row_gap = 3},
                LayoutName(layout));
  }
}

TEST_P(GenericAttentionTest, LayoutBlockSizeChunksAndThreadsDoNotChangeBits) {
  // A GPU multiplies halves of HND caches in an order of its own.
  const DType type = of_gpu() ? DType::kF32 : DType::kF16;
  const int32_t queries = of_gpu() ? 15 : 70;
  AttentionShapes shape{.heads = 6,
                        .kv_heads = 2,
                        .dim = 32,
                        .kv = type,
                        .sequences = {{queries, 530 + queries}},
                        .scores = {.softcap = 15},
                        .alibi = true,
                        .compute = type,
                        .layout = CacheLayout::kNhd,
                        .sinks = true};
  AttentionProblem whole(shape, 5);
  const Result expected = Varlen(whole);
  whole.Check(expected.out, expected.lse, 60, "whole");
  auto threads = MakeLibrary(GetParam(), 3);
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const int32_t block_size : {1, 16, 256}) {
      shape.layout = layout;
      shape.block_size = block_size;
      AttentionProblem p(shape, 5);
      EXPECT_TRUE(Varlen(p) == expected) << LayoutName(layout) << " " << block_size;
      for (const int32_t chunk : {1, 33}) {
        if (chunk == 1 && block_size != 16) continue;
        for (int32_t first = 0; first < queries; first += std::max(chunk, 13)) {
          const int32_t end = std::min(queries, first + chunk);
          p.cu_q = {0, end - first};
          p.seq_lens = {530 + end};
          GuardedFloats out((end - first) * 6 * 32);
          VarlenAttentionArgs args = p.Args(out.data());
          args.q = args.q.At(first * 6 * 32);
          ASSERT_TRUE(threads->VarlenAttention(args).ok());
          ASSERT_EQ(std::memcmp(out.data(), expected.out.data() + first * 6 * 32,
                                (end - first) * 6 * 32 * 4),
                    0)
              << LayoutName(layout) << " block " << block_size << " chunk at " << first;
        }
      }
    }
  }
}

TEST_P(GenericAttentionTest, DenseKeysGiveTheBitsOfACacheThatHoldsThem) {
  for (const bool causal : {true, false}) {
    AttentionProblem p({.heads = 6,
                        .kv_heads = 2,
                        .dim = 40,
                        .sequences = kMixed,
                        .scores = {.causal = causal},
                        .alibi = true,
                        .v_dim = 24,
                        .layout = CacheLayout::kNhd,
                        .alibi_per_sequence = true},
                       31);
    const Result cached = Varlen(p);
    p.Check(cached.out, cached.lse, 1000, "cached");
    const Result dense = Guarded(p, [&](float* out, float* lse) {
      return kernels_->VarlenAttention(p.DenseArgs(out, lse));
    });
    EXPECT_TRUE(dense == cached);
  }
}

TEST_P(GenericAttentionTest, DenseKeysBeyondTheUsedOnesAreNotRead) {
  // Query lengths [10, 3, 1], key lengths [0, 1, 7], and two unused rows behind each.
  AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{10, 0}, {3, 1}, {1, 7}}}, 2);
  const Result expected = Guarded(
      p, [&](float* out, float* lse) { return kernels_->VarlenAttention(p.DenseArgs(out, lse)); });
  EXPECT_EQ(p.cu_q, (std::vector<int32_t>{0, 10, 13, 14}));
  EXPECT_EQ(p.cu_k, (std::vector<int32_t>{0, 0, 1, 8}));
  p.Check(expected.out, expected.lse, 1000, "worked example");
  const int64_t width = 2 * 8;
  std::vector<float> k(14 * width, NAN), v(14 * width, NAN);
  const std::vector<int32_t> cu_k = {0, 2, 5, 14};
  for (const auto& [from, to, count] : {std::tuple{0, 2, 1}, {1, 5, 7}}) {
    std::copy_n(p.k.begin() + from * width, count * width, k.begin() + to * width);
    std::copy_n(p.v.begin() + from * width, count * width, v.begin() + to * width);
  }
  const Result used = Guarded(p, [&](float* out, float* lse) {
    VarlenAttentionArgs args = p.DenseArgs(out, lse);
    args.dense.k = k.data();
    args.dense.v = v.data();
    args.dense.cu_seqlens_k = cu_k.data();
    args.seq_lens = p.seq_lens.data();
    args.max_seqlen_q = 10;
    args.max_seqlen_k = 7;
    return kernels_->VarlenAttention(args);
  });
  EXPECT_TRUE(used == expected);
}

TEST_P(GenericAttentionTest, DenseKeysMayBeNone) {
  AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{3, 0}, {0, 0}, {1, 0}}}, 12);
  const Result r = Guarded(p, [&](float* out, float* lse) {
    VarlenAttentionArgs args = p.DenseArgs(out, lse);
    args.dense.k = args.dense.v = nullptr;
    args.dense.k_stride = args.dense.v_stride = 0;
    return kernels_->VarlenAttention(args);
  });
  EXPECT_EQ(r.out, std::vector<float>(r.out.size(), 0.0f));
  EXPECT_EQ(r.lse, std::vector<float>(r.lse.size(), -INFINITY));
}

TEST_P(GenericAttentionTest, AnEncoderSeesAllAndADecoderSeesTheEncodersCache) {
  // Self-attention of an encoder, then cross-attention: other lengths, tables and a cache.
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    CheckVarlen({.heads = 4,
                 .kv_heads = 4,
                 .dim = 16,
                 .sequences = {{17, 17}, {40, 40}},
                 .scores = {.causal = false},
                 .layout = layout},
                "encoder " + LayoutName(layout));
    CheckVarlen({.heads = 4,
                 .kv_heads = 4,
                 .dim = 16,
                 .sequences = {{5, 17}, {1, 40}, {30, 3}, {2, 0}},
                 .scores = {.causal = false},
                 .layout = layout},
                "cross " + LayoutName(layout));
  }
}

TEST_P(GenericAttentionTest, AQueryWithLocalChunksSeesItsOwnChunkOnly) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kPacked}) {
    // 300 and 700: some queries of a task see the first 512 keys, the others begin far behind them.
    for (const int32_t chunk : {1, 8, 30, 300, 512, 520, 700}) {
      CheckVarlen({.heads = 2,
                   .kv_heads = 1,
                   .dim = 16,
                   .sequences = {{40, 40}, {17, 100}, {1, 33}, {40, 720}, {30, 610}, {4, 2}},
                   .scores = {.local_chunk = chunk},
                   .layout = layout},
                  LayoutName(layout) + " chunk " + std::to_string(chunk));
    }
  }
}

TEST_P(GenericAttentionTest, SinksJoinTheDenominatorOnce) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd}) {
    for (const int32_t left : {-1, 15}) {
      CheckVarlen({.heads = 6,
                   .kv_heads = 2,
                   .dim = 16,
                   .sequences = {{40, 40}, {1, 1300}, {3, 0}, {2, 1}},
                   .scores = {.softcap = 10, .window_left = left},
                   .alibi = true,
                   .layout = layout,
                   .sinks = true},
                  LayoutName(layout) + " left " + std::to_string(left));
    }
  }
}

TEST_P(GenericAttentionTest, ASinkOfMinusInfinityIsNone) {
  AttentionProblem p({.heads = 2, .kv_heads = 1, .sequences = kMixed, .layout = CacheLayout::kNhd},
                     6);
  const Result expected = Varlen(p);
  const std::vector<float> none(2, -INFINITY);
  const Result with = Guarded(p, [&](float* out, float* lse) {
    VarlenAttentionArgs args = p.Args(out, lse);
    args.scores.sinks = none.data();
    return kernels_->VarlenAttention(args);
  });
  EXPECT_TRUE(with == expected);
}

TEST_P(GenericAttentionTest, BlockSparseDecodeSeesLocalAndVerticalBlocksByHeadAndRank) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kPacked}) {
    for (const int32_t step : {0, 1, 3, -1, -2}) {
      for (const int32_t rank : {0, 3}) {
        for (const auto& [local, stride] : {std::pair{1, 8}, {0, 3}, {4, 2}, {2, 1}}) {
          CheckPaged({.heads = 6,
                      .kv_heads = 2,
                      .dim = 16,
                      .block_size = 8,
                      .sequences = {{1, 1100}, {1, 37}, {1, 0}, {1, 16}, {1, 1}},
                      .layout = layout,
                      .sparsity = {.vert_stride = stride,
                                   .local_blocks = local,
                                   .block_size = 16,
                                   .head_sliding_step = step,
                                   .tp_rank = rank}},
                     LayoutName(layout) + " step " + std::to_string(step) + " local " +
                         std::to_string(local) + " stride " + std::to_string(stride));
        }
      }
    }
  }
}

TEST_P(GenericAttentionTest, ALayerMayReadTheCacheOfAnother) {
  // The second layer has queries of its own and no cache.
  AttentionProblem first({.heads = 4, .kv_heads = 2, .sequences = kMixed}, 1);
  AttentionProblem second({.heads = 4, .kv_heads = 2, .sequences = kMixed}, 2);
  const std::vector<std::byte> before = first.k_cache;
  VarlenAttentionArgs args = first.Args(nullptr);
  second.k = first.k;
  second.v = first.v;
  const Result shared = Guarded(second, [&](float* out, float* lse) {
    args.q = second.q.data();
    args.out = out;
    args.lse = lse;
    args.lse_stride = second.total_q;
    return kernels_->VarlenAttention(args);
  });
  second.Check(shared.out, shared.lse, 1000, "shared");
  EXPECT_EQ(first.k_cache, before);
}

BATON_FOR_EACH_LIBRARY(GenericAttentionTest);

}  // namespace
}  // namespace baton
