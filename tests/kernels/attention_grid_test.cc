// The acceptance grid of attention: a cover of all pairs of values, and everything on top of it
// nightly.
#include <cstdlib>
#include <iostream>
#include <set>

#include "tests/kernels/attention_problem.h"

namespace baton {
namespace {

constexpr int32_t kDims[] = {32, 64, 80, 96, 112, 120, 128, 192, 256, 8, 72, 248};
constexpr int32_t kBlockSizes[] = {8, 16, 32, 64, 128, 256, 1};
constexpr std::pair<int32_t, int32_t> kHeads[] = {{4, 4},  {8, 2},  {9, 3},   {6, 1},  {40, 40},
                                                  {64, 8}, {32, 8}, {12, 12}, {56, 56}};
// Compute dtype and the cache's.
constexpr std::pair<DType, DType> kDTypes[] = {
    {DType::kF32, DType::kF32},      {DType::kF16, DType::kF16},
    {DType::kBF16, DType::kBF16},    {DType::kF32, DType::kFp8E4M3},
    {DType::kBF16, DType::kFp8E4M3}, {DType::kBF16, DType::kFp8E5M2},
    {DType::kF16, DType::kFp8E5M2},  {DType::kF32, DType::kBF16}};
constexpr float kScales[] = {0.5f, 0.25f, 0};
constexpr int32_t kWindows[] = {-1, 15, 255, 2047};
constexpr float kSoftcaps[] = {0, 30, 50};
const std::vector<std::pair<int32_t, int32_t>> kSequences[] = {
    {{1, 1328}, {5, 18}, {129, 463}},
    {{1, 523}, {1, 37}, {1, 2011}},
    {{1, 213}, {1, 1}, {1, 312}, {1, 7}, {1, 7812}},
    {{0, 3}, {3, 0}, {0, 0}, {40, 64}, {1, 600}},
    {{2345, 2345}, {5, 5}, {3, 16}, {134, 5131}},
    {{992, 2456}, {1, 1234}, {98, 1145}, {1, 4162}},
    {{1, 131072}},
};
constexpr CacheLayout kLayouts[] = {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked};
// kSparse is for decode alone; elsewhere it stands for kPlain.
enum Option { kPlain, kAlibi, kAlibiPerSequence, kSinks, kLocalChunk, kNotCausal, kSparse };
// The parameters of a case are indexes into these, an Option last.
constexpr int kNumValues[] = {std::size(kDims),     std::size(kBlockSizes), std::size(kHeads),
                              std::size(kDTypes),   std::size(kScales),     std::size(kWindows),
                              std::size(kSoftcaps), std::size(kSequences),  std::size(kLayouts),
                              kSparse + 1};
constexpr int kNumParams = std::size(kNumValues);
using Case = std::array<int, kNumParams>;

// Not in the sanitizer build, which would need days.
bool Nightly() {
#ifdef __SANITIZE_ADDRESS__
  return false;
#else
  return std::getenv("BATON_NIGHTLY") != nullptr;
#endif
}

// Greedy: of 40 random cases the one that covers most pairs not yet covered.
std::vector<Case> PairwiseCover(uint64_t seed) {
  std::set<std::array<int, 4>> left;
  for (int a = 0; a < kNumParams; ++a) {
    for (int b = a + 1; b < kNumParams; ++b) {
      for (int i = 0; i < kNumValues[a]; ++i) {
        for (int j = 0; j < kNumValues[b]; ++j) left.insert({a, i, b, j});
      }
    }
  }
  const auto pairs_of = [](const Case& c) {
    std::vector<std::array<int, 4>> pairs;
    for (int a = 0; a < kNumParams; ++a) {
      for (int b = a + 1; b < kNumParams; ++b) pairs.push_back({a, c[a], b, c[b]});
    }
    return pairs;
  };
  Random random(seed);
  std::vector<Case> cover;
  while (!left.empty()) {
    Case best{};
    int most = -1;
    for (int attempt = 0; attempt < 40; ++attempt) {
      Case c;
      for (int a = 0; a < kNumParams; ++a) c[a] = static_cast<int>(random.Below(kNumValues[a]));
      // One pair is certain, so that the last ones are found.
      const auto& sure = *std::next(
          left.begin(), static_cast<int64_t>(random.Below(std::min<size_t>(left.size(), 8))));
      c[sure[0]] = sure[1];
      c[sure[2]] = sure[3];
      int gain = 0;
      for (const auto& pair : pairs_of(c)) gain += static_cast<int>(left.count(pair));
      if (gain > most) {
        most = gain;
        best = c;
      }
    }
    for (const auto& pair : pairs_of(best)) left.erase(pair);
    cover.push_back(best);
  }
  return cover;
}

bool IsDecode(const AttentionShapes& s) {
  return std::all_of(s.sequences.begin(), s.sequences.end(),
                     [](const auto& sequence) { return sequence.first == 1; });
}

AttentionShapes ShapesOf(const Case& c, double budget) {
  AttentionShapes s;
  s.dim = kDims[c[0]];
  s.block_size = kBlockSizes[c[1]];
  std::tie(s.heads, s.kv_heads) = kHeads[c[2]];
  std::tie(s.compute, s.kv) = kDTypes[c[3]];
  s.kv_scale = kScales[c[4]];
  s.scale_per_head = c[4] == 1;
  s.v_scale_per_head = c[4] == 2;
  s.scores.window_left = kWindows[c[5]];
  s.scores.softcap = kSoftcaps[c[6]];
  s.sequences = kSequences[c[7]];
  s.layout = kLayouts[c[8]];
  s.alibi = c[9] == kAlibi || c[9] == kAlibiPerSequence;
  s.alibi_per_sequence = c[9] == kAlibiPerSequence;
  s.sinks = c[9] == kSinks;
  if (c[9] == kLocalChunk) s.scores.local_chunk = 300;
  s.scores.causal = c[9] != kNotCausal;
  if (c[9] == kSparse && IsDecode(s)) {
    s.sparsity = {.vert_stride = 5, .local_blocks = 2, .block_size = 256, .head_sliding_step = 1};
  }
  double products = 0;
  for (const auto& [queries, keys] : s.sequences) {
    products += (2.0 * queries + 8) * keys * s.dim;  // With the making of the cache.
  }
  // Large shapes keep their group and lose heads, then rows of the group.
  while (s.kv_heads > 1 && products * s.heads > budget) {
    const int32_t group = s.heads / s.kv_heads;
    s.kv_heads = (s.kv_heads + 1) / 2;
    s.heads = s.kv_heads * group;
  }
  while (s.heads > 1 && s.kv_heads == 1 && products * s.heads > budget) s.heads = (s.heads + 1) / 2;
  return s;
}

std::string Describe(const AttentionShapes& s) {
  return "D " + std::to_string(s.dim) + " B " + std::to_string(s.block_size) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " " +
         std::string(ToString(s.compute)) + "/" + std::string(ToString(s.kv)) + " scale " +
         std::to_string(s.kv_scale) + " window " + std::to_string(s.scores.window_left) +
         " softcap " + std::to_string(s.scores.softcap) + (s.alibi ? " alibi" : "") +
         (s.sinks ? " sinks" : "") + (s.sparsity.vert_stride > 1 ? " sparse" : "") + " chunk " +
         std::to_string(s.scores.local_chunk) + " layout " +
         std::to_string(static_cast<int>(s.layout)) + " first " +
         std::to_string(s.sequences[0].second);
}

class AttentionGridTest : public KernelTest {
 protected:
  void Run(const AttentionShapes& shape, uint64_t seed) {
    if (shape.layout == CacheLayout::kPacked && shape.dim % (16 / SizeOf(shape.kv)) != 0) {
      ExpectRefusal(shape);
      return;
    }
    AttentionProblem p(shape, seed);
    GuardedFloats out(p.out_size()), lse(p.total_q * shape.heads);
    const bool sparse = shape.sparsity.vert_stride > 1;
    const absl::Status status = sparse
                                    ? two_threads_->PagedAttention(p.PagedArgs(
                                          out.data(), AttentionSplit::kReference, lse.data()))
                                    : two_threads_->VarlenAttention(p.Args(out.data(), lse.data()));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact()) << Describe(shape);
    p.Check(out.values(), lse.values(), Nightly() ? 64 : 12, Describe(shape));
    const auto expect_same_bits = [&](const absl::Status& again, GuardedFloats& got) {
      ASSERT_TRUE(again.ok()) << again;
      EXPECT_EQ(std::memcmp(got.data(), out.data(), p.out_size() * 4), 0) << Describe(shape);
    };
    GuardedFloats again(p.out_size());
    if (shape.layout == CacheLayout::kNhd && !sparse) {
      expect_same_bits(two_threads_->VarlenAttention(p.DenseArgs(again.data())), again);
    }
    if (!IsDecode(shape)) return;
    for (const auto split : {AttentionSplit::kSinglePass, AttentionSplit::kSplit}) {
      expect_same_bits(two_threads_->PagedAttention(p.PagedArgs(again.data(), split)), again);
    }
  }

  void ExpectRefusal(AttentionShapes shape) {
    shape.sequences = {{1, 1}};
    AttentionProblem p(shape, 1);
    std::vector<float> out(p.out_size());
    const absl::Status status = two_threads_->VarlenAttention(p.Args(out.data()));
    EXPECT_NE(status.message().find("k_cache.dim = "), absl::string_view::npos) << status;
  }

  // Emulated fma is slow.
  bool Slow() const { return GetParam() == "portable"; }

  std::unique_ptr<CpuKernels> two_threads_ = MakeTestKernels(GetParam(), 2);
};

TEST_P(AttentionGridTest, EveryPairOfValuesAgreesWithADoubleLoop) {
  const double budget = Nightly() ? 4e10 : Slow() ? 2e6 : 1e8;
  int left_out = 0;
  uint64_t seed = 100;
  for (const Case& c : PairwiseCover(1)) {
    ++seed;
    if (!Nightly() && (kSequences[c[7]].back().second > 100000 || (Slow() && c[7] > 3))) {
      ++left_out;
      continue;
    }
    Run(ShapesOf(c, budget), seed);
    if (HasFatalFailure()) return;
  }
  if (left_out > 0) {
    std::cout << left_out << " large cases are left to a run with BATON_NIGHTLY=1\n";
  }
}

TEST_P(AttentionGridTest, NamedCornersAgreeWithADoubleLoop) {
  std::vector<AttentionShapes> corners = {
      // OPT-125m and OPT-30b.
      {.heads = 12,
       .kv_heads = 12,
       .dim = 64,
       .kv = DType::kF16,
       .sequences = {{1, 195}, {7, 40}},
       .scores = {.scale = 0.125f},
       .compute = DType::kF16},
      {.heads = 56,
       .kv_heads = 56,
       .dim = 128,
       .kv = DType::kF16,
       .sequences = {{1, 195}},
       .scores = {.scale = 0.0883883f},
       .compute = DType::kF16},
      // A window that begins on a partial state's boundary, and one key after it.
      {.heads = 2,
       .kv_heads = 1,
       .dim = 64,
       .kv = DType::kBF16,
       .sequences = {{1, 1024}, {1, 1025}},
       .scores = {.window_left = 511},
       .compute = DType::kBF16},
      {.heads = 64,
       .kv_heads = 1,
       .dim = 256,
       .block_size = 256,
       .kv = DType::kFp8E4M3,
       .sequences = {{1, 513}},
       .kv_scale = 0.25f,
       .compute = DType::kBF16},
  };
  if (!Slow() || Nightly()) {
    corners.push_back({.heads = 2,
                       .kv_heads = 1,
                       .dim = 64,
                       .block_size = 64,
                       .kv = DType::kBF16,
                       .sequences = {{1, 131072}},
                       .compute = DType::kBF16});
  }
  uint64_t seed = 7;
  for (const AttentionShapes& shape : corners) Run(shape, ++seed);
}

BATON_FOR_EACH_KERNEL_SET(AttentionGridTest);

}  // namespace
}  // namespace baton
