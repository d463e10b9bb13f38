#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_runner.h"
#include "kernels/api/sample_args.h"

namespace baton {

// Rows of logits from which a device chooses tokens, or tells about tokens that are known, and the
// lists that the rows point into.
struct SampleLists {
  std::vector<SampleRow> samples;
  std::vector<ScoreRow> scores;
  std::vector<LogitBias> biases;
  std::vector<int32_t> masks;
  std::vector<int32_t> history;
  // Of rows that follow some of the step before, the place that their token has in `history`.
  std::vector<TakenToken> taken;

  void Clear();

  // For the token of `row` at this absolute position. `eos_token_ids` are the model's.
  void AddSample(const StepRow& row, int32_t position, const std::vector<int32_t>& eos_token_ids,
                 int32_t logit_row);
  // For the prompt's token of `row` at this position.
  void AddScore(const StepRow& row, int32_t position, int32_t logit_row);
};

// Bytes that AddSample adds to the lists beside its SampleRow, or a few more.
int64_t ListBytes(const StepRow& row, const std::vector<int32_t>& eos_token_ids);

}  // namespace baton
