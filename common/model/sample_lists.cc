#include "common/model/sample_lists.h"

#include "common/base/check.h"

namespace baton {
namespace {

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from, int32_t& first, int32_t& count) {
  if (count == 0) first = static_cast<int32_t>(to.size());
  BATON_CHECK(to.size() + from.size() <= INT32_MAX);
  to.insert(to.end(), from.begin(), from.end());
  count += static_cast<int32_t>(from.size());
}

bool PenalizesPrompt(const SamplingParams& params) { return params.repetition_penalty != 1; }

bool PenalizesEmitted(const SamplingParams& params) {
  return PenalizesPrompt(params) || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

}  // namespace

void SampleLists::Clear() {
  samples.clear();
  scores.clear();
  biases.clear();
  masks.clear();
  history.clear();
  taken.clear();
}

void SampleLists::AddSample(const StepRow& row, int32_t position,
                            const std::vector<int32_t>& eos_token_ids, int32_t logit_row) {
  const SamplingParams& params = row.sampling->params;
  SampleRow sample = MakeSampleRow(params, position);
  sample.logit_row = logit_row;
  Append(biases, params.logit_bias, sample.first_bias, sample.num_bias);
  if (row.num_emitted < params.min_tokens) {
    if (!params.ignore_eos) Append(masks, eos_token_ids, sample.first_mask, sample.num_mask);
    Append(masks, params.stop_token_ids, sample.first_mask, sample.num_mask);
  }
  if (PenalizesPrompt(params)) {
    Append(history, row.sampling->prompt, sample.first_prompt, sample.num_prompt);
  }
  if (PenalizesEmitted(params)) {
    Append(history, row.emitted, sample.first_emitted, sample.num_emitted);
    if (row.follows >= 0) {
      const auto place = static_cast<int32_t>(history.size());
      Append(history, {0}, sample.first_emitted, sample.num_emitted);
      taken.push_back({.row = row.follows, .to = place});
    }
  }
  samples.push_back(sample);
}

void SampleLists::AddScore(const StepRow& row, int32_t position, int32_t logit_row) {
  scores.push_back({.logit_row = logit_row,
                    .token = row.sampling->prompt[position],
                    .num_top = row.sampling->params.num_prompt_logprobs});
}

int64_t ListBytes(const StepRow& row, const std::vector<int32_t>& eos_token_ids) {
  const SamplingParams& params = row.sampling->params;
  int64_t tokens = 0;
  if (row.num_emitted < params.min_tokens) {
    tokens += std::ssize(eos_token_ids) + std::ssize(params.stop_token_ids);
  }
  if (PenalizesPrompt(params)) tokens += std::ssize(row.sampling->prompt);
  if (PenalizesEmitted(params)) tokens += std::ssize(row.emitted) + (row.follows < 0 ? 0 : 1);
  return std::ssize(params.logit_bias) * int64_t{sizeof(LogitBias)} +
         tokens * int64_t{sizeof(int32_t)};
}

}  // namespace baton
