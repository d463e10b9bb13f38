#include "common/model/read_results.h"

#include "absl/strings/str_cat.h"
#include "kernels/api/portable_math.h"

namespace baton {
namespace {

// log(sum of e^logit), in double.
double LogSum(float max, uint64_t sum) {
  return max + PortableLog(static_cast<double>(sum) / static_cast<double>(kWeightOne));
}

std::vector<TokenLogprob> ReadTop(const TopTokens& top, int64_t index, int32_t num_top,
                                  double log_sum) {
  std::vector<TokenLogprob> read;
  read.reserve(num_top);
  for (int64_t at = index * top.stride; at < index * top.stride + num_top; ++at) {
    read.push_back({.token = top.tokens[at],
                    .logprob = static_cast<float>(top.logits[at] - log_sum)});
  }
  return read;
}

}  // namespace

absl::Status BadLogits(int32_t position) {
  return absl::InternalError(absl::StrCat("the logits of position ", position,
                                          " are not finite: no token can be told"));
}

TokenOutput ReadSample(const SampleResult& result, const TopTokens& top, int64_t index,
                       int32_t num_top, int32_t position) {
  TokenOutput output{.position = position, .token = result.token};
  if (num_top < 0) return output;
  const double log_sum = LogSum(result.max, result.sum);
  output.logprob = static_cast<float>(result.token_logit - log_sum);
  output.top = ReadTop(top, index, num_top, log_sum);
  return output;
}

PromptLogprob ReadScore(const ScoreResult& result, const TopTokens& top, int64_t index,
                        int32_t num_top, int32_t position, int32_t token) {
  const double log_sum = LogSum(result.max, result.sum);
  return {.position = position,
          .token = token,
          .logprob = static_cast<float>(result.token_logit - log_sum),
          .rank = result.rank,
          .top = ReadTop(top, index, num_top, log_sum)};
}

}  // namespace baton
