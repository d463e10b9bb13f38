#include "common/model/row_reader.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/step_metadata.h"

namespace baton {
namespace {

// Tokens may be masked by -inf, but not all.
bool AreDistribution(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int is_below = 1;
  int is_any_finite = 0;
  for (const float logit : logits) {
    is_below &= static_cast<int>(logit < kInfinity);  // False for NaN.
    is_any_finite |= static_cast<int>(logit > -kInfinity);
  }
  return (is_below & is_any_finite) != 0;
}

void ReadRow(std::span<const float> logits, const LogitRow& wanted, Sampler& sampler) {
  const StepRow& row = *wanted.row;
  if (wanted.score != nullptr) {
    const SamplingContext& context = *row.sampling;
    *wanted.score = sampler.Score(logits, context.prompt[wanted.position], wanted.position,
                                  context.params.num_prompt_logprobs);
  }
  if (wanted.sample) {
    wanted.result->sampled = true;
    wanted.result->output = sampler.Sample({.logits = logits,
                                            .context = row.sampling.get(),
                                            .emitted = row.emitted,
                                            .num_emitted = row.num_emitted,
                                            .position = wanted.position});
  }
}

}  // namespace

RowReader::RowReader(Kernels* kernels, int32_t vocab_size,
                     const std::vector<int32_t>& eos_token_ids)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      samplers_(kernels->num_threads(),
                Sampler(&kernels->row_math(), vocab_size, eos_token_ids)) {}

void RowReader::Read(std::span<const float> logits, std::span<const LogitRow> rows) {
  BATON_CHECK(logits.size() == rows.size() * vocab_size_);
  is_bad_.assign(rows.size(), 0);
  kernels_->ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t row, int thread) {
    const auto values = logits.subspan(row * vocab_size_, vocab_size_);
    is_bad_[row] = !AreDistribution(values);
    if (!is_bad_[row]) ReadRow(values, rows[row], samplers_[thread]);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!is_bad_[i]) continue;
    rows[i].result->status = absl::InternalError(absl::StrCat(
        "the logits of position ", rows[i].position, " are not finite: no token can be told"));
  }
}

std::vector<LogitRow> WantedRows(const StepPlan& plan, std::vector<RowResult>& results) {
  std::vector<LogitRow> wanted;
  results.assign(plan.rows.size(), {});
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    RowResult& result = results[r];
    result.sequence = row.sequence;
    const auto num_tokens = static_cast<int64_t>(row.tokens.size());
    // Sized before any score's place is taken.
    int64_t num_scores = 0;
    for (int64_t i = 0; i < num_tokens; ++i) num_scores += ScoresPrompt(row, i) ? 1 : 0;
    result.prompt_logprobs.resize(num_scores);
    size_t next_score = 0;
    for (int64_t i = 0; i < num_tokens; ++i) {
      LogitRow entry{.row = &row,
                     .result = &result,
                     .position = row.context_len + static_cast<int32_t>(i) + 1};
      if (ScoresPrompt(row, i)) entry.score = &result.prompt_logprobs[next_score++];
      entry.sample = row.sample && i + 1 == num_tokens;
      if (entry.score != nullptr || entry.sample) wanted.push_back(entry);
    }
  }
  return wanted;
}

}  // namespace baton
