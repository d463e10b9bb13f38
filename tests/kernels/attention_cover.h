#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/kernels/attention_problem.h"

// The acceptance grid of attention, of which every device runs a cover of all pairs of values.
namespace baton::attention_grid {

inline constexpr int32_t kDims[] = {32, 64, 80, 96, 112, 120, 128, 192, 256, 8, 72, 248};
inline constexpr int32_t kBlockSizes[] = {8, 16, 32, 64, 128, 256, 1};
inline constexpr std::pair<int32_t, int32_t> kHeads[] = {
    {4, 4}, {8, 2}, {9, 3}, {6, 1}, {40, 40}, {64, 8}, {32, 8}, {12, 12}, {56, 56}};
// Compute dtype and the cache's.
inline constexpr std::pair<DType, DType> kDTypes[] = {
    {DType::kF32, DType::kF32},      {DType::kF16, DType::kF16},
    {DType::kBF16, DType::kBF16},    {DType::kF32, DType::kFp8E4M3},
    {DType::kBF16, DType::kFp8E4M3}, {DType::kBF16, DType::kFp8E5M2},
    {DType::kF16, DType::kFp8E5M2},  {DType::kF32, DType::kBF16}};
inline constexpr float kScales[] = {0.5f, 0.25f, 0};
inline constexpr int32_t kWindows[] = {-1, 15, 255, 2047};
inline constexpr float kSoftcaps[] = {0, 30, 50};
inline const std::vector<std::pair<int32_t, int32_t>> kSequences[] = {
    {{1, 1328}, {5, 18}, {129, 463}},
    {{1, 523}, {1, 37}, {1, 2011}},
    {{1, 213}, {1, 1}, {1, 312}, {1, 7}, {1, 7812}},
    {{0, 3}, {3, 0}, {0, 0}, {40, 64}, {1, 600}},
    {{2345, 2345}, {5, 5}, {3, 16}, {134, 5131}},
    {{992, 2456}, {1, 1234}, {98, 1145}, {1, 4162}},
    {{1, 131072}},
};
inline constexpr CacheLayout kLayouts[] = {CacheLayout::kHnd, CacheLayout::kNhd,
                                           CacheLayout::kPacked};
// kSparse is for decode alone; elsewhere it stands for kPlain.
enum Option { kPlain, kAlibi, kAlibiPerSequence, kSinks, kLocalChunk, kNotCausal, kSparse };
// The parameters of a case are indexes into these, an Option last.
inline constexpr int kNumValues[] = {
    std::size(kDims),    std::size(kBlockSizes), std::size(kHeads),     std::size(kDTypes),
    std::size(kScales),  std::size(kWindows),    std::size(kSoftcaps),  std::size(kSequences),
    std::size(kLayouts), kSparse + 1};
inline constexpr int kNumParams = std::size(kNumValues);
using Case = std::array<int, kNumParams>;

// Greedy: of 40 random cases the one that covers most pairs not yet covered.
inline std::vector<Case> PairwiseCover(uint64_t seed) {
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

inline bool IsDecode(const AttentionShapes& s) {
  return std::all_of(s.sequences.begin(), s.sequences.end(),
                     [](const auto& sequence) { return sequence.first == 1; });
}

inline AttentionShapes ShapesOf(const Case& c, double budget) {
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

// Of long sequences the last keys: what an emulation has time for.
inline AttentionShapes Short(AttentionShapes shape, int32_t queries, int32_t keys) {
  for (auto& [q, k] : shape.sequences) {
    q = std::min(q, queries);
    k = std::min(k, keys);
  }
  return shape;
}

inline std::string Describe(const AttentionShapes& s) {
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

}  // namespace baton::attention_grid
