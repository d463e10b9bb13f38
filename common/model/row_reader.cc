#include "common/model/row_reader.h"

#include "common/base/check.h"
#include "common/model/step_batch.h"

namespace baton {
namespace {

void ReadRow(std::span<const float> logits, const LogitRow& wanted, Sampler& sampler) {
  const StepRow& row = *wanted.row;
  if (wanted.score != nullptr) {
    const SamplingContext& context = *row.sampling;
    *wanted.score = sampler.Score(logits, context.prompt[wanted.position], wanted.position,
                                  context.params.num_prompt_logprobs);
  }
  if (wanted.sampled != nullptr) {
    wanted.sampled->sampled = true;
    wanted.sampled->output = sampler.Sample({.logits = logits,
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
  kernels_->ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t row, int thread) {
    ReadRow(logits.subspan(row * vocab_size_, vocab_size_), rows[row], samplers_[thread]);
  });
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
      LogitRow entry{.row = &row, .position = row.context_len + static_cast<int32_t>(i) + 1};
      if (ScoresPrompt(row, i)) entry.score = &result.prompt_logprobs[next_score++];
      if (row.sample && i + 1 == num_tokens) entry.sampled = &result;
      if (entry.score != nullptr || entry.sampled != nullptr) wanted.push_back(entry);
    }
  }
  return wanted;
}

}  // namespace baton
