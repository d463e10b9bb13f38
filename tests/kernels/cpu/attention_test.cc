#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

using Sequences = std::vector<std::pair<int32_t, int32_t>>;

const Sequences kMixed = {{5, 18}, {1, 37}, {0, 9}, {33, 40}, {1, 1}, {3, 0}};
const Sequences kLong = {{1, 1328}, {40, 1063}, {3, 514}};

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result& other) const {
    return out.size() == other.out.size() && lse.size() == other.lse.size() &&
           std::memcmp(out.data(), other.out.data(), out.size() * 4) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
  }
};

Result Varlen(CpuKernels& kernels, AttentionProblem& p) {
  GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
  const absl::Status status = kernels.VarlenAttention(p.Args(out.data(), lse.data()));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
  return {out.values(), lse.values()};
}

Result Paged(CpuKernels& kernels, AttentionProblem& p, AttentionSplit split) {
  GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
  const absl::Status status = kernels.PagedAttention(p.PagedArgs(out.data(), split, lse.data()));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
  return {out.values(), lse.values()};
}

class AttentionTest : public KernelTest {
 protected:
  void Check(const AttentionShapes& shape, const std::string& what) {
    AttentionProblem p(shape, 11);
    const Result result = Varlen(*kernels_, p);
    p.Check(result.out, result.lse, p.total_q * shape.heads, what);
  }
};

TEST_P(AttentionTest, AgreesWithDoubleLoopAtOddShapesAndNeverReadsPoison) {
  const AttentionShapes grid[] = {{.heads = 8, .kv_heads = 2, .dim = 10, .block_size = 8},
                                  {.heads = 5, .kv_heads = 1, .dim = 80, .block_size = 1},
                                  {.heads = 3, .kv_heads = 3, .dim = 6, .block_size = 7},
                                  {.heads = 40, .kv_heads = 1, .dim = 16, .block_size = 16},
                                  {.heads = 97, .kv_heads = 1, .dim = 8, .block_size = 16},
                                  {.heads = 4, .kv_heads = 2, .dim = 40, .v_dim = 24},
                                  {.heads = 2, .kv_heads = 1, .dim = 255, .block_size = 3}};
  for (AttentionShapes shape : grid) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        shape.sequences = kMixed;
        shape.kv = dtype;
        shape.compute = compute;
        Check(shape, "dim " + std::to_string(shape.dim) + " " + std::string(ToString(dtype)));
      }
    }
  }
}

TEST_P(AttentionTest, MasksByWindowsOnBothSidesWithAndWithoutCausality) {
  for (const bool causal : {true, false}) {
    for (const auto& [left, right] :
         {std::pair{-1, -1}, {0, 0}, {5, 0}, {-1, 3}, {7, 2}, {600, -1}}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        Check({.heads = 6,
               .kv_heads = 2,
               .dim = 24,
               .block_size = 8,
               .kv = compute,
               .sequences = {{40, 40}, {17, 700}, {30, 5}, {1, 33}, {0, 4}, {2, 0}},
               .scores = {.causal = causal, .window_left = left, .window_right = right},
               .compute = compute},
              "window " + std::to_string(left) + " " + std::to_string(right));
      }
    }
  }
}

TEST_P(AttentionTest, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  // Query lengths [10, 3, 1], key lengths [0, 1, 7].
  AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{10, 0}, {3, 1}, {1, 7}}}, 2);
  EXPECT_EQ(p.cu_q, (std::vector<int32_t>{0, 10, 13, 14}));
  const Result result = Varlen(*kernels_, p);
  p.Check(result.out, result.lse, 1000, "worked example");
  for (int token = 0; token < 12; ++token) {  // Only the last of the second sequence sees its key.
    for (int i = 0; i < 32; ++i) EXPECT_EQ(result.out[token * 32 + i], 0.0f);
    for (int h = 0; h < 4; ++h) EXPECT_EQ(result.lse[h * 14 + token], -INFINITY);
  }
  EXPECT_TRUE(std::isfinite(result.lse[12]) && std::isfinite(result.lse[13]));
}

TEST_P(AttentionTest, SplitSinglePassAndVarlenGiveTheSameBits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const int32_t left : {-1, 700}) {
      AttentionProblem p({.heads = 6,
                          .kv_heads = 2,
                          .dim = 40,
                          .block_size = 16,
                          .kv = compute,
                          .sequences = {{1, 1328}, {1, 512}, {1, 513}, {1, 1}, {1, 0}, {1, 2011}},
                          .scores = {.softcap = 20, .window_left = left},
                          .alibi = true,
                          .compute = compute},
                         3);
      const Result expected = Varlen(*kernels_, p);
      p.Check(expected.out, expected.lse, 40, "varlen");
      for (const int threads : {1, 3}) {
        auto kernels = MakeTestKernels(GetParam(), threads);
        for (const auto split :
             {AttentionSplit::kAuto, AttentionSplit::kSinglePass, AttentionSplit::kSplit}) {
          EXPECT_TRUE(Paged(*kernels, p, split) == expected)
              << threads << " threads, split " << static_cast<int>(split) << " left " << left;
        }
      }
    }
  }
}

TEST_P(AttentionTest, TheTableMayBeRaggedAndShared) {
  AttentionProblem p({.heads = 4, .kv_heads = 2, .dim = 40, .sequences = kLong}, 5);
  const Result expected = Varlen(*kernels_, p);
  AttentionProblem::RaggedTable ragged = p.Ragged();
  ragged.entries.shrink_to_fit();
  GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
  VarlenAttentionArgs args = p.Args(out.data(), lse.data());
  args.block_table = ragged.entries.data();
  args.table_starts = ragged.starts.data();
  ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
  EXPECT_TRUE((Result{out.values(), lse.values()}) == expected);

  // Two decode rows of one sequence, of different lengths.
  AttentionProblem one({.sequences = {{1, 700}}}, 6);
  std::vector<float> q = one.q;
  q.insert(q.end(), one.q.begin(), one.q.end());
  const std::vector<int32_t> lens = {700, 330}, starts = {0, 0};
  std::vector<float> rows(2 * one.out_size()), alone(one.out_size());
  PagedAttentionArgs paged = one.PagedArgs(alone.data(), AttentionSplit::kAuto);
  ASSERT_TRUE(kernels_->PagedAttention(paged).ok());
  paged.q = q.data();
  paged.num_seqs = 2;
  paged.seq_lens = lens.data();
  paged.table_starts = starts.data();
  paged.out = rows.data();
  ASSERT_TRUE(kernels_->PagedAttention(paged).ok());
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), rows.begin()));
  const int32_t shorter = 330;
  paged = one.PagedArgs(alone.data(), AttentionSplit::kAuto);
  paged.seq_lens = &shorter;
  ASSERT_TRUE(kernels_->PagedAttention(paged).ok());
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), rows.begin() + one.out_size()));
}

TEST_P(AttentionTest, ChunksAndBlockSizesDoNotChangeBits) {
  // 600 keys cross a partial state's boundary. Every chunk alone must equal all in one call.
  const int32_t n = 600;
  const int64_t width = 6 * 24;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t left : {-1, 37}) {
      AttentionShapes shape{.heads = 6,
                            .kv_heads = 2,
                            .dim = 24,
                            .kv = dtype,
                            .sequences = {{n, n}},
                            .scores = {.window_left = left},
                            .compute = dtype};
      AttentionProblem whole(shape, 7);
      const std::vector<float> expected = Varlen(*kernels_, whole).out;
      for (const int32_t block_size : {1, 8, 64, 256}) {
        shape.block_size = block_size;
        AttentionProblem part(shape, 7);
        for (const int32_t chunk : {1, 7, 256}) {
          for (int32_t end = 500; end <= n; end += std::max(chunk, 13)) {
            const int32_t first = std::max(0, end - chunk);
            part.cu_q = {0, end - first};
            part.seq_lens = {end};
            GuardedFloats out((end - first) * width);
            VarlenAttentionArgs args = part.Args(out.data());
            args.q = args.q.At(first * width);
            ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
            ASSERT_EQ(std::memcmp(out.data(), &expected[first * width], (end - first) * width * 4),
                      0)
                << "block size " << block_size << " chunk " << chunk << " end " << end;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, ADecodedRowHasTheBitsOfThatRowInAPrompt) {
  // One query's few rows take their keys straight from the cache; more queries stage them.
  const int32_t n = 520, queries = 12;
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3,
                              DType::kFp8E5M2};
  for (const int32_t group : {1, 2, 4, 8, 9}) {
    for (const DType dtype : kTypes) {
      for (const int32_t left : {-1, 37}) {
        const int32_t dim = 64 * (group % 3) + 32;
        AttentionProblem p({.heads = group,
                            .kv_heads = 1,
                            .dim = dim,
                            .block_size = 8 << group % 4,
                            .kv = dtype,
                            .sequences = {{queries, n}},
                            .scores = {.window_left = left},
                            .kv_scale = IsFp8(dtype) ? 0.5f : 0.0f,
                            .compute = dtype == DType::kBF16 ? DType::kBF16 : DType::kF32},
                           5);
        const std::vector<float> expected = Varlen(*kernels_, p).out;
        const int64_t width = group * dim;
        p.cu_q = {0, 1};
        for (int32_t i = 0; i < queries; ++i) {
          p.seq_lens = {n - queries + i + 1};
          GuardedFloats out(width);
          VarlenAttentionArgs args = p.Args(out.data());
          args.q = args.q.At(i * width);
          ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
          ASSERT_EQ(std::memcmp(out.data(), &expected[i * width], width * 4), 0)
              << "group " << group << " dim " << dim << " " << ToString(dtype) << " query " << i;
        }
      }
    }
  }
}

TEST_P(AttentionTest, OtherSequencesAndThreadsDoNotChangeBits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    AttentionProblem mixed({.heads = 6,
                            .kv_heads = 2,
                            .dim = 32,
                            .kv = DType::kBF16,
                            .sequences = {{70, 700}, {1, 530}, {200, 200}},
                            .compute = compute},
                           3);
    const Result expected = Varlen(*kernels_, mixed);
    for (const int threads : {2, 3}) {
      EXPECT_TRUE(Varlen(*MakeTestKernels(GetParam(), threads), mixed) == expected) << threads;
    }
    GuardedFloats alone(6 * 32);
    VarlenAttentionArgs args = mixed.Args(alone.data());
    const int32_t cu[] = {0, 1};
    args.q = args.q.At(70 * 6 * 32);
    args.num_seqs = 1;
    args.cu_seqlens_q = cu;
    args.seq_lens = &mixed.seq_lens[1];
    args.block_table = &mixed.table[mixed.max_blocks];
    ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
    EXPECT_EQ(std::memcmp(alone.data(), &expected.out[70 * 6 * 32], 6 * 32 * 4), 0);
  }
}

TEST_P(AttentionTest, ADecodeRowHasTheBitsOfTheSameRowInAPromptAtEveryHeadSize) {
  const DType kv_dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3,
                             DType::kFp8E5M2};
  for (const int32_t dim : {8, 40, 80, 112, 120, 255}) {
    for (const DType kv : kv_dtypes) {
      for (const int32_t heads : {1, 3, 8}) {
        for (const int32_t left : {-1, 21}) {  // 21: the first key is none of 16 neighbours' first.
          const DType compute = kv == DType::kF32 ? DType::kF32 : DType::kBF16;
          AttentionProblem prompt({.heads = heads,
                                   .kv_heads = 1,
                                   .dim = dim,
                                   .block_size = heads == 3 ? 7 : 16,
                                   .kv = kv,
                                   .sequences = {{13, 549}},
                                   .scores = {.window_left = left},
                                   .compute = compute},
                                  dim + heads);
          const Result expected = Varlen(*kernels_, prompt);
          const int64_t row = int64_t{heads} * dim;
          GuardedFloats alone(row);
          VarlenAttentionArgs args = prompt.Args(alone.data());
          const int32_t cu[] = {0, 1};
          args.q = args.q.At(12 * row);
          args.cu_seqlens_q = cu;
          ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
          EXPECT_TRUE(alone.GuardsIntact());
          EXPECT_EQ(std::memcmp(alone.data(), &expected.out[12 * row], row * 4), 0)
              << "dim " << dim << " heads " << heads << " left " << left << ' ' << ToString(kv);
        }
      }
    }
  }
}

TEST_P(AttentionTest, KeysAfterAQueryDoNotTouchItEvenIfInfinite) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // 9 queries before the infinite keys: the last of them shares a pair with the first such key.
    const AttentionShapes shape{.heads = 4,
                                .kv_heads = 2,
                                .dim = 16,
                                .block_size = 9,
                                .kv = dtype,
                                .sequences = {{20, 20}},
                                .compute = dtype};
    AttentionProblem clean(shape, 5), sick(shape, 5);
    const std::vector<float> expected = Varlen(*kernels_, clean).out;
    const int64_t bytes = 2 * 9 * 16 * SizeOf(dtype);
    const auto inf = Encode(dtype, std::vector<float>(2 * 9 * 16, INFINITY));
    std::memcpy(&sick.k_cache[sick.table[1] * bytes], inf.data(), bytes);  // Keys 9 to 17.
    std::memcpy(&sick.v_cache[sick.table[1] * bytes], inf.data(), bytes);
    const std::vector<float> got = Varlen(*kernels_, sick).out;
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), 9 * 4 * 16 * 4), 0);
  }
}

TEST_P(AttentionTest, SoftcapComesBeforeTheBiasAndAfterTheScale) {
  for (const float cap : {1.0f, 30.0f}) {
    Check({.heads = 4,
           .kv_heads = 4,
           .dim = 64,
           .sequences = kMixed,
           .scores = {.scale = 2, .softcap = cap},
           .alibi = true},
          "softcap");
  }
}

TEST_P(AttentionTest, SlopesMayDifferPerSequence) {
  AttentionProblem p({.heads = 2, .kv_heads = 1, .sequences = {{1, 9}, {1, 9}}}, 4);
  const float slopes[] = {0, 0, 0, 0.5f, 0.25f, 0};
  GuardedFloats out(p.out_size()), first(p.out_size()), second(p.out_size());
  VarlenAttentionArgs args = p.Args(out.data());
  args.scores.alibi_slopes = slopes;
  args.scores.alibi_stride = 3;
  ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
  args.scores.alibi_stride = 0;
  args.out = first.data();
  ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
  args.scores.alibi_slopes = slopes + 3;
  args.out = second.data();
  ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
  EXPECT_EQ(std::memcmp(out.data(), first.data(), 16 * 4), 0);
  EXPECT_EQ(std::memcmp(out.data() + 16, second.data() + 16, 16 * 4), 0);
  EXPECT_NE(std::memcmp(first.data(), second.data(), 16 * 4), 0);
}

TEST_P(AttentionTest, PartialStatesAccumulateOverLongSequences) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Check({.heads = 6,
           .kv_heads = 2,
           .dim = 32,
           .kv = compute,
           .sequences = kLong,
           .compute = compute},
          "long");
  }
}

TEST_P(AttentionTest, MergedStatesEqualTheAttentionOverAllKeys) {
  // The keys before 20 and the others, apart: windows of a single query.
  AttentionShapes shape{
      .heads = 4, .kv_heads = 2, .dim = 16, .block_size = 4, .sequences = {{1, 50}}};
  AttentionProblem all(shape, 8);
  const Result expected = Varlen(*kernels_, all);
  shape.scores.window_left = 29;
  AttentionProblem late(shape, 8);
  const Result late_part = Varlen(*kernels_, late);
  all.seq_lens[0] = 20;
  const Result early_part = Varlen(*kernels_, all);
  GuardedFloats out(64), lse(4);
  ASSERT_TRUE(kernels_
                  ->MergeAttentionStates({.out_a = early_part.out.data(),
                                          .lse_a = early_part.lse.data(),
                                          .out_b = late_part.out.data(),
                                          .lse_b = late_part.lse.data(),
                                          .num_tokens = 1,
                                          .num_heads = 4,
                                          .dim = 16,
                                          .out = out.data(),
                                          .lse = lse.data()})
                  .ok());
  EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(out.values()[i], expected.out[i], 1e-6);
  for (int h = 0; h < 4; ++h) EXPECT_NEAR(lse.values()[h], expected.lse[h], 1e-6);
}

TEST_P(AttentionTest, MergingTakesAnInfiniteLseForAnEmptySide) {
  const std::vector<float> a(6, 2.0f), nothing(6, NAN);
  const std::vector<float> lse_a = {1, -INFINITY, INFINITY}, lse_b = {INFINITY, 3, -INFINITY};
  GuardedFloats out(6), lse(3);
  std::vector<float> first = a, second = nothing;
  std::copy_n(nothing.begin(), 4, first.begin() + 2);
  std::copy_n(a.begin(), 2, second.begin() + 2);
  ASSERT_TRUE(kernels_
                  ->MergeAttentionStates({.out_a = first.data(),
                                          .lse_a = lse_a.data(),
                                          .out_b = second.data(),
                                          .lse_b = lse_b.data(),
                                          .num_tokens = 3,
                                          .num_heads = 1,
                                          .dim = 2,
                                          .out = out.data(),
                                          .lse = lse.data()})
                  .ok());
  EXPECT_EQ(out.values(), (std::vector<float>{2, 2, 2, 2, 0, 0}));
  EXPECT_EQ(lse.values(), (std::vector<float>{1, 3, -INFINITY}));
}

BATON_FOR_EACH_KERNEL_SET(AttentionTest);

}  // namespace
}  // namespace baton
