#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/sample_args.h"
#include "kernels/cpu/sampling/candidates.h"
#include "kernels/cpu/sampling/row_math.h"
#include "kernels/cpu/sampling/weighted_tokens.h"

namespace baton {

// Chooses and scores tokens of single rows, as sample_args.h says. Keeps scratch memory, made when
// first needed: one caller at a time.
class Sampler {
 public:
  explicit Sampler(const RowMath* math) : math_(math), candidates_(math), weighted_(math) {}

  // Row `index` of the call, of which it writes the alternatives.
  SampleResult Sample(const SampleArgs& args, int64_t index);
  ScoreResult Score(const ScoreArgs& args, int64_t index);

 private:
  // The logits after bias, mask and penalties; the raw ones where none of them is asked for.
  std::span<const float> Adjust(const SampleArgs& args, const SampleRow& row,
                                std::span<const float> logits);
  void Penalize(const SampleArgs& args, const SampleRow& row);
  // Finds the likeliest token, unless a logit is a NaN: then false.
  bool Scan(std::span<const float> logits);
  bool ScanDistribution(std::span<const float> logits);
  // These three are of the row that was scanned last.
  int32_t Draw(std::span<const float> logits, const SampleRow& row);
  // Of the weights at temperature 1.
  uint64_t Sum(std::span<const float> logits) const;
  void WriteTop(std::span<const float> logits, int32_t count, const TopTokens& top, int64_t index);

  const RowMath* math_;
  std::vector<float> adjusted_;      // [vocab_size]
  std::vector<int32_t> counts_;      // [vocab_size]: zero between calls.
  std::vector<float> maxima_;        // RowMath's block_max.
  int32_t best_ = 0;                 // The likeliest token.
  Candidates candidates_;
  WeightedTokens weighted_;
};

}  // namespace baton
