#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/read_results.h"
#include "common/model/sample_lists.h"
#include "kernels/api/model_ops.h"
#include "xxhash.h"

namespace baton {

// What one draw depends on, and nothing else.
struct SampleInput {
  std::span<const float> logits;  // [vocab_size], raw.
  const SamplingContext* context = nullptr;
  std::vector<int32_t> emitted;  // Tokens produced before, where penalties need them.
  int32_t num_emitted = 0;       // How many were produced before.
  int32_t position = 0;          // Absolute position of the token to produce.
};

// One row of logits to a token or a score, from a request's parameters to its answer's words, by
// the operators of a CPU.
class HostSampler {
 public:
  HostSampler(ModelOps* ops, std::vector<int32_t> eos_token_ids)
      : ops_(ops), eos_token_ids_(std::move(eos_token_ids)) {}

  TokenOutput Sample(const SampleInput& input) {
    const auto unowned = [](const SamplingContext*) {};
    const StepRow row{.sampling = std::shared_ptr<const SamplingContext>(input.context, unowned),
                      .emitted = input.emitted,
                      .num_emitted = input.num_emitted};
    SampleLists lists;
    lists.AddSample(row, input.position, eos_token_ids_, 0);
    SampleResult result;
    const auto vocab_size = static_cast<int32_t>(input.logits.size());
    const TopTokens top = MakeRoom(vocab_size);
    BATON_CHECK(ops_->Sample({.logits = input.logits.data(),
                              .logits_stride = vocab_size,
                              .vocab_size = vocab_size,
                              .rows = lists.samples.data(),
                              .num_rows = 1,
                              .biases = lists.biases.data(),
                              .masks = lists.masks.data(),
                              .history = lists.history.data(),
                              .results = &result,
                              .top = top})
                    .ok());
    const SamplingParams& params = input.context->params;
    TokenOutput output = ReadSample(result, top, 0, std::min(params.num_logprobs, vocab_size),
                                    input.position);
    if (params.logits_digest) {
      output.logits_digest = XXH3_64bits(input.logits.data(), input.logits.size_bytes());
    }
    return output;
  }

  PromptLogprob Score(std::span<const float> logits, int32_t token, int32_t position,
                      int32_t num_top) {
    const ScoreRow row{.token = token, .num_top = num_top};
    ScoreResult result;
    const auto vocab_size = static_cast<int32_t>(logits.size());
    const TopTokens top = MakeRoom(vocab_size);
    BATON_CHECK(ops_->Score({.logits = logits.data(),
                             .logits_stride = vocab_size,
                             .vocab_size = vocab_size,
                             .rows = &row,
                             .num_rows = 1,
                             .results = &result,
                             .top = top})
                    .ok());
    return ReadScore(result, top, 0, std::min(num_top, vocab_size), position, token);
  }

 private:
  TopTokens MakeRoom(int32_t vocab_size) {
    tokens_.resize(vocab_size);
    logits_.resize(vocab_size);
    return {tokens_.data(), logits_.data(), vocab_size};
  }

  ModelOps* const ops_;
  const std::vector<int32_t> eos_token_ids_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
};

}  // namespace baton
