#include "router/generation/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "router/error.h"
#include "router/generation/utf8.h"

namespace baton {
namespace {

// A number's allowed range, [low, high] or (low, high].
struct Bounds {
  double low;
  double high;
  bool open_low = false;
};

absl::Status CheckNumber(std::string_view param, std::optional<double> value, Bounds bounds) {
  if (!value.has_value()) return absl::OkStatus();
  const bool above = bounds.open_low ? *value > bounds.low : *value >= bounds.low;
  if (above && *value <= bounds.high) {  // False for NaN too.
    return absl::OkStatus();
  }
  const std::string low =
      absl::StrFormat("%s %g", bounds.open_low ? "greater than" : "at least", bounds.low);
  const std::string high = std::isfinite(bounds.high) && bounds.high < 1e9
                               ? absl::StrFormat(" and at most %g", bounds.high)
                               : std::string();
  return InvalidField(param,
                      absl::StrFormat("%s is %g; it must be %s%s.", param, *value, low, high));
}

absl::Status CheckInteger(std::string_view param, std::optional<int64_t> value, int64_t low,
                          int64_t high) {
  if (!value.has_value() || (*value >= low && *value <= high)) return absl::OkStatus();
  return InvalidField(
      param, absl::StrFormat("%s is %d; it must be between %d and %d.", param, *value, low, high));
}

absl::Status CheckStops(const GenerationRequest& request, const GenerationLimits& limits,
                        bool has_tokenizer) {
  if (request.stop.empty()) return absl::OkStatus();
  if (!has_tokenizer) {
    return InvalidField("stop",
                        "stop needs text, and this model has no tokenizer; use "
                        "stop_token_ids.");
  }
  if (request.stop.size() > static_cast<size_t>(limits.max_stop_strings)) {
    return InvalidField("stop", absl::StrFormat("stop has %d strings; at most %d are allowed.",
                                                request.stop.size(), limits.max_stop_strings));
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return InvalidField("stop", "stop contains an empty string; remove it.");
    if (stop.size() > static_cast<size_t>(limits.max_stop_bytes)) {
      return InvalidField("stop",
                          absl::StrFormat("stop has a string of %d bytes; at most %d are allowed.",
                                          stop.size(), limits.max_stop_bytes));
    }
    if (!IsValidUtf8(stop)) {
      return InvalidField("stop", "stop has a string that is not valid UTF-8.");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokenLists(const GenerationRequest& request, const GenerationLimits& limits) {
  if (request.stop_token_ids.size() > static_cast<size_t>(limits.max_stop_token_ids)) {
    return InvalidField("stop_token_ids",
                        absl::StrFormat("stop_token_ids has %d ids; at most %d are allowed.",
                                        request.stop_token_ids.size(), limits.max_stop_token_ids));
  }
  for (const int64_t id : request.stop_token_ids) {
    RETURN_IF_ERROR(CheckInteger("stop_token_ids", id, 0, int64_t{limits.vocab_size} - 1));
  }
  // Each goes to the workers with every choice.
  if (request.logit_bias.size() > static_cast<size_t>(limits.max_logit_biases)) {
    return InvalidField("logit_bias",
                        absl::StrFormat("logit_bias has %d tokens; at most %d are allowed.",
                                        request.logit_bias.size(), limits.max_logit_biases));
  }
  for (const LogitBias& bias : request.logit_bias) {
    RETURN_IF_ERROR(CheckInteger("logit_bias", bias.token, 0, int64_t{limits.vocab_size} - 1));
    RETURN_IF_ERROR(CheckNumber("logit_bias", bias.bias, {-100, 100}));
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const GenerationRequest& r, const GenerationLimits& limits) {
  constexpr double kInfinity = std::numeric_limits<float>::max();
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(CheckNumber("temperature", r.temperature, {0, 2}));
  RETURN_IF_ERROR(CheckNumber("top_p", r.top_p, {0, 1, /*open_low=*/true}));
  RETURN_IF_ERROR(CheckNumber("min_p", r.min_p, {0, 1}));
  RETURN_IF_ERROR(
      CheckNumber("repetition_penalty", r.repetition_penalty, {0, kInfinity, /*open_low=*/true}));
  RETURN_IF_ERROR(CheckNumber("frequency_penalty", r.frequency_penalty, {-2, 2}));
  RETURN_IF_ERROR(CheckNumber("presence_penalty", r.presence_penalty, {-2, 2}));
  RETURN_IF_ERROR(CheckInteger("top_k", r.top_k, -1, kMaxInt));
  RETURN_IF_ERROR(CheckInteger("n", r.n, 1, kMaxSequencesPerRequest));
  RETURN_IF_ERROR(CheckInteger("priority", r.priority, -kMaxInt, kMaxInt));
  RETURN_IF_ERROR(CheckInteger("prompt_logprobs", r.prompt_logprobs, 0, limits.max_logprobs));
  RETURN_IF_ERROR(CheckInteger(r.logprobs_param, r.logprobs, 0, limits.max_logprobs));
  RETURN_IF_ERROR(CheckInteger("min_tokens", r.min_tokens, 0, limits.max_model_len));
  if (r.max_tokens.has_value() && *r.max_tokens < (r.echo ? 0 : 1)) {
    return InvalidField(r.max_tokens_param,
                        absl::StrFormat("%s is %d; it must be at least 1 (0 only with echo).",
                                        r.max_tokens_param, *r.max_tokens));
  }
  return absl::OkStatus();
}

absl::Status CheckPrompts(const GenerationRequest& r, bool has_tokenizer) {
  if (r.prompts.empty()) {
    return InvalidField(r.prompt_param, absl::StrCat(r.prompt_param, " is empty."));
  }
  if (r.prompts.size() > static_cast<size_t>(kMaxSequencesPerRequest)) {
    return InvalidField(r.prompt_param,
                        absl::StrFormat("%s has %d prompts; at most %d are allowed.",
                                        r.prompt_param, r.prompts.size(),
                                        kMaxSequencesPerRequest));
  }
  const int64_t choices = static_cast<int64_t>(r.prompts.size()) * r.n.value_or(1);
  if (choices > kMaxSequencesPerRequest) {
    return InvalidField("n",
                        absl::StrFormat("n is %d with %d prompts; prompts times n may be at "
                                        "most %d.",
                                        r.n.value_or(1), r.prompts.size(),
                                        kMaxSequencesPerRequest));
  }
  for (const Prompt& prompt : r.prompts) {
    if (!has_tokenizer && !std::holds_alternative<std::vector<int32_t>>(prompt)) {
      return InvalidField(r.prompt_param,
                          absl::StrCat(r.prompt_param,
                                       " is text, and this model has no "
                                       "tokenizer; send token ids to /v1/completions."));
    }
  }
  return absl::OkStatus();
}

absl::Status TooLong(std::string_view param, int64_t value, int64_t prompt, int64_t limit) {
  const int64_t fits = std::max<int64_t>(limit - prompt, 0);
  return WithErrorCode(
      InvalidField(param, absl::StrFormat("%s is %d, and the prompt has %d tokens; this model's "
                                          "maximum context length is %d tokens, so %s may be at "
                                          "most %d.",
                                          param, value, prompt, limit, param, fits)),
      "context_length_exceeded");
}

bool IsScoreOnly(const GenerationRequest& r) {
  return r.max_tokens.has_value() && *r.max_tokens == 0;
}

// `tokens`: how many it has, in words.
absl::Status PromptTooLong(const GenerationRequest& r, const std::string& tokens, int64_t limit) {
  const int64_t fits = IsScoreOnly(r) ? limit : limit - 1;
  return WithErrorCode(
      InvalidField(r.prompt_param,
                   absl::StrFormat("%s has %s tokens; this model's maximum context length is %d "
                                   "tokens, so it may have at most %d.",
                                   r.prompt_param, tokens, limit, fits)),
      "context_length_exceeded");
}

bool IsTooLong(const GenerationRequest& r, int64_t prompt, int64_t limit) {
  return IsScoreOnly(r) ? prompt > limit : prompt >= limit;
}

// What the log probabilities of an answer multiply to. All factors are far below 2^31.
struct ScoreCount {
  int64_t prompt_tokens = 0;  // Of all prompts.
  int64_t num_prompts = 0;
  int64_t choices = 1;  // Of each prompt.
  int64_t prompt_width = 0;  // Log probabilities of one prompt token, with its alternatives.
  int64_t width = 0;         // Likewise of a produced token.

  ScoreCount(const GenerationRequest& r, const std::vector<std::vector<int32_t>>& prompts)
      : num_prompts(static_cast<int64_t>(prompts.size())),
        choices(r.n.value_or(1)),
        prompt_width(1 + r.prompt_logprobs.value_or(-1)),
        width(1 + r.logprobs.value_or(-1)) {
    for (const auto& prompt : prompts) prompt_tokens += static_cast<int64_t>(prompt.size());
  }
  int64_t OfPrompts() const { return prompt_tokens * prompt_width * choices; }
  int64_t OfAnswer(int64_t max_tokens) const { return num_prompts * max_tokens * width * choices; }
  // The largest max_tokens whose log probabilities fit; may be below 1.
  int64_t FittingTokens(int64_t max_scores) const {
    if (width == 0) return std::numeric_limits<int64_t>::max();
    return (max_scores - OfPrompts()) / (num_prompts * width * choices);
  }
};

// A small request must not ask for an answer of gigabytes.
absl::Status CheckScores(const GenerationRequest& r, const ScoreCount& count, int64_t max_tokens,
                         const GenerationLimits& limits) {
  const int64_t total = count.OfPrompts() + count.OfAnswer(max_tokens);
  if (total <= limits.max_scores) return absl::OkStatus();
  std::vector<std::string> terms;
  if (count.OfPrompts() > 0) {
    terms.push_back(absl::StrFormat("%d tokens of %s x %d", count.prompt_tokens, r.prompt_param,
                                    count.prompt_width));
  }
  if (count.OfAnswer(max_tokens) > 0) {
    terms.push_back(absl::StrFormat("%d prompts x %s %d x %d", count.num_prompts,
                                    r.max_tokens_param, max_tokens, count.width));
  }
  const bool of_answer = r.logprobs.has_value();
  const std::string param = of_answer ? r.logprobs_param : "prompt_logprobs";
  return InvalidField(
      param, absl::StrFormat(
                 "%s is %d, which asks for %d log probabilities: (%s) x n %d, where each token has "
                 "its own and its alternatives; at most %d are allowed. Ask for fewer "
                 "alternatives, tokens or choices, or send several requests.",
                 param, of_answer ? *r.logprobs : *r.prompt_logprobs, total,
                 absl::StrJoin(terms, " + "), count.choices, limits.max_scores));
}

// The number of tokens to produce; 0 = score only.
absl::StatusOr<int32_t> ChooseMaxTokens(const GenerationRequest& r, int64_t longest_prompt,
                                        const ScoreCount& count, const GenerationLimits& limits) {
  const int64_t limit = limits.max_model_len;
  const int64_t remaining = limit - longest_prompt;
  const int64_t cap = limits.max_output_tokens > 0 ? limits.max_output_tokens : limit;
  if (IsTooLong(r, longest_prompt, limit)) {
    return PromptTooLong(r, absl::StrCat(longest_prompt), limit);
  }
  if (!r.max_tokens.has_value()) {
    // Nobody asked for so many: the default gives way to the bound of log probabilities.
    const int64_t scored = std::max<int64_t>(count.FittingTokens(limits.max_scores), 1);
    const int64_t wanted = r.default_max_tokens.value_or(remaining);
    return static_cast<int32_t>(std::min({wanted, remaining, cap, scored}));
  }
  if (*r.max_tokens > remaining) {
    return TooLong(r.max_tokens_param, *r.max_tokens, longest_prompt, limit);
  }
  if (*r.max_tokens > cap) {
    return InvalidField(
        r.max_tokens_param,
        absl::StrFormat("%s is %d; it may be at most %d.", r.max_tokens_param, *r.max_tokens, cap));
  }
  return static_cast<int32_t>(*r.max_tokens);
}

float Pick(std::optional<double> asked, std::optional<float> model_default, float otherwise) {
  return asked.has_value() ? static_cast<float>(*asked) : model_default.value_or(otherwise);
}

absl::StatusOr<SamplingParams> BuildSampling(const GenerationRequest& r,
                                             const GenerationLimits& limits,
                                             const GenerationConfig& defaults, uint64_t seed) {
  SamplingParams s;
  s.temperature = Pick(r.temperature, defaults.temperature, 1);
  s.top_p = Pick(r.top_p, defaults.top_p, 1);
  if (s.top_p <= 0) {  // A positive double that no float holds.
    s.top_p = std::numeric_limits<float>::min();
  }
  s.min_p = Pick(r.min_p, defaults.min_p, 0);
  s.repetition_penalty = Pick(r.repetition_penalty, defaults.repetition_penalty, 1);
  if (s.repetition_penalty <= 0) {
    return InvalidField("repetition_penalty", "repetition_penalty is too close to 0.");
  }
  s.frequency_penalty = static_cast<float>(r.frequency_penalty.value_or(0));
  s.presence_penalty = static_cast<float>(r.presence_penalty.value_or(0));
  const int64_t top_k = r.top_k.value_or(defaults.top_k.value_or(0));
  // Keeping all of the vocabulary is the same as off.
  s.top_k = top_k <= 0 || top_k >= limits.vocab_size ? 0 : static_cast<int32_t>(top_k);
  s.logit_bias = r.logit_bias;
  std::sort(s.logit_bias.begin(), s.logit_bias.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  const auto twice =
      std::adjacent_find(s.logit_bias.begin(), s.logit_bias.end(),
                         [](const LogitBias& a, const LogitBias& b) { return a.token == b.token; });
  if (twice != s.logit_bias.end()) {
    return InvalidField("logit_bias",
                        absl::StrFormat("logit_bias names token %d twice.", twice->token));
  }
  s.seed = r.seed.has_value() ? static_cast<uint64_t>(*r.seed) : seed;
  s.ignore_eos = r.ignore_eos;
  s.stop_token_ids.assign(r.stop_token_ids.begin(), r.stop_token_ids.end());
  std::sort(s.stop_token_ids.begin(), s.stop_token_ids.end());
  s.stop_token_ids.erase(std::unique(s.stop_token_ids.begin(), s.stop_token_ids.end()),
                         s.stop_token_ids.end());
  s.num_logprobs = static_cast<int32_t>(r.logprobs.value_or(-1));
  s.num_prompt_logprobs = static_cast<int32_t>(r.prompt_logprobs.value_or(-1));
  s.logits_digest = r.logits_digests;
  return s;
}

}  // namespace

absl::Status CheckRequest(const GenerationRequest& request, const GenerationLimits& limits,
                          bool has_tokenizer) {
  if (request.label.size() > static_cast<size_t>(limits.max_label_bytes)) {
    return InvalidField("request_id",
                        absl::StrFormat("request_id has %d bytes; at most %d are allowed.",
                                        request.label.size(), limits.max_label_bytes));
  }
  RETURN_IF_ERROR(CheckSampling(request, limits));
  RETURN_IF_ERROR(CheckTokenLists(request, limits));
  RETURN_IF_ERROR(CheckStops(request, limits, has_tokenizer));
  return CheckPrompts(request, has_tokenizer);
}

absl::Status CheckLeastTokens(const GenerationRequest& request, const GenerationLimits& limits,
                              int64_t least) {
  if (!IsTooLong(request, least, limits.max_model_len)) return absl::OkStatus();
  return PromptTooLong(request, absl::StrCat("at least ", least), limits.max_model_len);
}

absl::StatusOr<ValidRequest> BuildValidRequest(const GenerationRequest& request,
                                               std::vector<std::vector<int32_t>> prompts,
                                               const GenerationLimits& limits,
                                               const GenerationConfig& defaults, uint64_t seed) {
  int64_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) {
      return InvalidField(request.prompt_param,
                          absl::StrCat(request.prompt_param, " has no tokens."));
    }
    for (const int32_t id : prompt) {
      RETURN_IF_ERROR(CheckInteger(request.prompt_param, id, 0, int64_t{limits.vocab_size} - 1));
    }
    longest = std::max<int64_t>(longest, static_cast<int64_t>(prompt.size()));
  }
  const ScoreCount count(request, prompts);
  ASSIGN_OR_RETURN(const int32_t max_tokens, ChooseMaxTokens(request, longest, count, limits));
  RETURN_IF_ERROR(CheckScores(request, count, max_tokens, limits));
  ValidRequest valid;
  ASSIGN_OR_RETURN(valid.sampling, BuildSampling(request, limits, defaults, seed));
  valid.score_only = max_tokens == 0;
  valid.sampling.max_tokens = std::max(max_tokens, 1);
  valid.sampling.min_tokens = static_cast<int32_t>(request.min_tokens.value_or(0));
  if (valid.sampling.min_tokens > max_tokens) {
    return InvalidField("min_tokens", absl::StrFormat("min_tokens is %d; it may be at most "
                                                      "%s, which is %d.",
                                                      valid.sampling.min_tokens,
                                                      request.max_tokens_param, max_tokens));
  }
  valid.label = request.label;
  valid.prompt_param = request.prompt_param;
  valid.tenant = request.tenant;
  valid.prompts = std::move(prompts);
  valid.num_choices = static_cast<int32_t>(request.n.value_or(1));
  valid.priority = static_cast<int32_t>(request.priority);
  valid.timeout = request.timeout > Duration::zero()
                      ? std::min(request.timeout, limits.default_timeout)
                      : limits.default_timeout;
  valid.bytes = request.bytes;
  return valid;
}

}  // namespace baton
