#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/model/model_runner.h"
#include "common/model/sampler.h"
#include "kernels/api/kernels.h"

namespace baton {

// What is wanted of one row of a step's logits.
struct LogitRow {
  const StepRow* row = nullptr;
  RowResult* result = nullptr;
  int32_t position = 0;            // Of the token that the logits are about.
  PromptLogprob* score = nullptr;  // Where the prompt token's score goes, if asked for.
  bool sample = false;             // Whether a token is to be sampled.
};

// Turns rows of logits into tokens and scores, each row on one thread of the device: the bits do
// not depend on how many there are. Logits that are no distribution (one is NaN or infinite, or all
// are -inf) are an error of their row.
class RowReader {
 public:
  // `kernels` must outlive the reader.
  RowReader(Kernels* kernels, int32_t vocab_size, const std::vector<int32_t>& eos_token_ids);

  // logits: [rows.size(), vocab_size].
  void Read(std::span<const float> logits, std::span<const LogitRow> rows);

 private:
  Kernels* kernels_;
  int32_t vocab_size_;
  std::vector<Sampler> samplers_;  // One per thread.
  std::vector<char> is_bad_;       // Of the rows: several may have one result.
};

// The rows of logits that a plan asks for, in the order of StepMetadata::wanted(), each with
// its place in `results`, which gets a row for each of the plan's.
std::vector<LogitRow> WantedRows(const StepPlan& plan, std::vector<RowResult>& results);

}  // namespace baton
