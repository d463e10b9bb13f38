#pragma once

#include <cstdint>

#include "common/base/sampling.h"

namespace baton {

// Choosing tokens from rows of logits: bias, mask and penalties, then with a temperature top_k,
// min_p and top_p. Integers decide: a token's weight is 2^((logit - max) scale) in units of 2^-44,
// rounded, so that sums and shares have no order, and equal logits give equal tokens on every
// device; equal weights go to the lower id. Logarithms are left to the host: log probability =
// logit - (max + ln(sum / 2^44)).
//
// A row is no distribution if a logit is NaN or +inf, all are -inf, or penalties make a NaN: then
// nothing is chosen, and its result says is_bad and token -1 and is 0 otherwise.

// Part of the numerics id: devices of one version choose equal tokens for equal logits.
inline constexpr const char* kSamplerVersion = "sampler.2";

inline constexpr int kWeightBits = 44;
inline constexpr uint64_t kWeightOne = uint64_t{1} << kWeightBits;  // Of the likeliest token.

// How one token is chosen. All arithmetic on parameters has been done: see MakeSampleRow.
struct SampleRow {
  uint64_t key = 0;           // Where the draw falls, in units of 2^-64 of all weights.
  double scale = 0;           // log2(e) / temperature; 0: greedy.
  uint64_t least_weight = 0;  // min_p in units of 2^-44; 0: off.
  uint64_t top_p = 0;         // In units of 2^-63; 0: off.
  int32_t top_k = 0;          // 0: off.
  int32_t num_top = -1;       // Alternatives to tell; 0: the sum alone, -1: not even that.
  float repetition = 1;       // Of each distinct token of prompt and emitted; 1: off.
  float frequency = 0;        // Of each emitted token; 0: off.
  float presence = 0;         // Of each distinct emitted token; 0: off.
  int32_t first_bias = 0, num_bias = 0;        // In SampleArgs::biases; no token twice.
  int32_t first_mask = 0, num_mask = 0;        // In SampleArgs::masks: tokens that may not come.
  int32_t first_prompt = 0, num_prompt = 0;    // In SampleArgs::history. Both are looked at where
  int32_t first_emitted = 0, num_emitted = 0;  // a penalty needs them, else may be empty.
  int32_t logit_row = 0;                       // Of SampleArgs::logits.
};

struct SampleResult {
  int32_t token = -1;
  float token_logit = 0;  // Raw, as all that follow.
  float max = 0;          // These two where num_top >= 0, else 0.
  int32_t is_bad = 0;
  uint64_t sum = 0;  // Of the weights at temperature 1.
  bool operator==(const SampleResult&) const = default;
};

// The likeliest tokens of a row, the greatest first, of equals the lower id: min(num_top,
// vocab_size) of them, at [row * stride]. What is behind is left as it is. Null if no row asks.
struct TopTokens {
  int32_t* tokens = nullptr;  // [num_rows, stride]
  float* logits = nullptr;    // [num_rows, stride]
  int64_t stride = 0;
};

struct SampleArgs {
  const float* logits = nullptr;  // [>= each logit_row + 1, vocab_size]
  int64_t logits_stride = 0;      // Elements from row to row.
  int32_t vocab_size = 0;         // At most 2^19: sums of weights stay below 2^64.
  const SampleRow* rows = nullptr;
  int64_t num_rows = 0;
  const LogitBias* biases = nullptr;
  const int32_t* masks = nullptr;    // Tokens; those outside the vocabulary are passed over.
  const int32_t* history = nullptr;  // Tokens, each in [0, vocab_size).
  SampleResult* results = nullptr;   // [num_rows]
  TopTokens top;
  // Scratch of devices, needed if a row has a bias, a mask or a penalty; CPUs have their own.
  float* adjusted = nullptr;  // [num_rows, vocab_size]
  int32_t* counts = nullptr;  // [num_rows, vocab_size], zeros before and after.
};

// Tokens that were sampled go where the next step reads them, without the host's knowing them.
struct TakenToken {
  int32_t row = 0;  // Of `results`.
  int32_t to = 0;   // tokens[to] = its token; 0 if nothing was chosen.
};
struct TakeTokensArgs {
  const SampleResult* results = nullptr;
  const TakenToken* taken = nullptr;  // [count]; no place twice.
  int64_t count = 0;
  int32_t* tokens = nullptr;
};

// What is wanted of one row of logits about a token that is known.
struct ScoreRow {
  int32_t logit_row = 0;
  int32_t token = 0;    // In [0, vocab_size).
  int32_t num_top = 0;  // >= 0
};

struct ScoreResult {
  float token_logit = 0;
  float max = 0;
  int32_t rank = 0;  // 1: the likeliest; of equals the lower id comes first.
  int32_t is_bad = 0;
  uint64_t sum = 0;  // Of the weights at temperature 1.
  bool operator==(const ScoreResult&) const = default;
};

struct ScoreArgs {
  const float* logits = nullptr;  // [>= each logit_row + 1, vocab_size]
  int64_t logits_stride = 0;
  int32_t vocab_size = 0;  // At most 2^19.
  const ScoreRow* rows = nullptr;
  int64_t num_rows = 0;
  ScoreResult* results = nullptr;  // [num_rows]
  TopTokens top;
};

inline constexpr int32_t kMaxVocabulary = 1 << 19;

// The row for the token at this absolute position; its lists and logit_row are left as they are.
SampleRow MakeSampleRow(const SamplingParams& params, int32_t position);

}  // namespace baton
