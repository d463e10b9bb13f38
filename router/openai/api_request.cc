#include "router/openai/api_request.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "router/error.h"
#include "router/openai/unsupported_fields.h"

namespace baton {
namespace {

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's, for /v1/completions.

absl::Status CheckObject(const Json& body) {
  return body.is_object() ? absl::OkStatus()
                          : absl::InvalidArgumentError("The body must be a JSON object.");
}

// "request_id" goes into the answer's id and the logs: nothing but plain characters.
absl::Status ReadLabel(const Json& body, std::string* out) {
  RETURN_IF_ERROR(ReadField(body, "request_id", out));
  const bool plain = std::all_of(out->begin(), out->end(), [](char c) {
    return c > ' ' && c < 0x7F && c != '"' && c != '\\';
  });
  return plain ? absl::OkStatus()
               : InvalidField("request_id",
                              "request_id may have printable ASCII characters only, without "
                              "spaces, quotes and backslashes.");
}

absl::Status ReadStop(const Json& body, std::vector<std::string>* out) {
  const Json* stop = FindField(body, "stop");
  if (stop == nullptr) return absl::OkStatus();
  if (stop->is_string()) {
    out->push_back(stop->get<std::string>());
    return absl::OkStatus();
  }
  if (!stop->is_array()) return WrongType("stop", *stop, "a string or a list of strings");
  for (const Json& item : *stop) {
    if (!item.is_string()) return WrongType("stop", item, "a string or a list of strings");
    out->push_back(item.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const Json& body, std::vector<LogitBias>* out) {
  const Json* biases = FindField(body, "logit_bias");
  if (biases == nullptr) return absl::OkStatus();
  if (!biases->is_object()) {
    return WrongType("logit_bias", *biases, "an object of token ids and numbers");
  }
  for (const auto& [key, value] : biases->items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(key, &token)) {
      return WrongType("logit_bias", Json(key), "an object whose keys are token ids");
    }
    if (!value.is_number()) {
      return WrongType("logit_bias", value, "an object whose values are numbers");
    }
    // Checked before it becomes a float: 1e300 must not turn into an infinity that looks odd.
    const double bias = std::clamp(value.get<double>(), -1e6, 1e6);
    out->push_back({token, static_cast<float>(bias)});
  }
  return absl::OkStatus();
}

absl::Status ReadStream(const Json& body, ApiRequest* out) {
  RETURN_IF_ERROR(ReadField(body, "stream", &out->stream));
  const Json* options = FindField(body, "stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return WrongType("stream_options", *options, "an object");
  if (!out->stream) {
    return InvalidField("stream_options", "stream_options needs stream to be true.");
  }
  for (const auto& [name, flag] : {std::pair{"include_usage", &out->include_usage},
                                   std::pair{"continuous_usage_stats", &out->continuous_usage}}) {
    if (const Json* value = FindField(*options, name)) {
      if (!value->is_boolean()) {
        return WrongType(absl::StrFormat("stream_options.%s", name), *value, "true or false");
      }
      *flag = value->get<bool>();
    }
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const Json& body, GenerationRequest* g) {
  RETURN_IF_ERROR(ReadField(body, "temperature", &g->temperature));
  RETURN_IF_ERROR(ReadField(body, "top_k", &g->top_k));
  RETURN_IF_ERROR(ReadField(body, "top_p", &g->top_p));
  RETURN_IF_ERROR(ReadField(body, "min_p", &g->min_p));
  RETURN_IF_ERROR(ReadField(body, "repetition_penalty", &g->repetition_penalty));
  RETURN_IF_ERROR(ReadField(body, "frequency_penalty", &g->frequency_penalty));
  RETURN_IF_ERROR(ReadField(body, "presence_penalty", &g->presence_penalty));
  RETURN_IF_ERROR(ReadLogitBias(body, &g->logit_bias));
  RETURN_IF_ERROR(ReadField(body, "seed", &g->seed));
  RETURN_IF_ERROR(ReadField(body, "min_tokens", &g->min_tokens));
  RETURN_IF_ERROR(ReadField(body, "n", &g->n));
  RETURN_IF_ERROR(ReadField(body, "ignore_eos", &g->ignore_eos));
  RETURN_IF_ERROR(ReadField(body, "stop_token_ids", &g->stop_token_ids));
  RETURN_IF_ERROR(ReadStop(body, &g->stop));
  RETURN_IF_ERROR(ReadField(body, "skip_special_tokens", &g->skip_special_tokens));
  RETURN_IF_ERROR(ReadField(body, "add_special_tokens", &g->add_special_tokens));
  RETURN_IF_ERROR(ReadField(body, "return_logits_digest", &g->logits_digests));
  std::optional<int64_t> priority;
  RETURN_IF_ERROR(ReadField(body, "priority", &priority));
  g->priority = priority.value_or(0);
  std::optional<int64_t> best_of;
  RETURN_IF_ERROR(ReadField(body, "best_of", &best_of));
  if (best_of.has_value() && *best_of != 1 && *best_of != g->n.value_or(1)) {
    return InvalidField("best_of", absl::StrFormat("best_of is %d; only 1 or the value of n is "
                                                   "supported.",
                                                   *best_of));
  }
  return absl::OkStatus();
}

// What both kinds of request have.
absl::Status ReadShared(const Json& body, ApiRequest* out) {
  RETURN_IF_ERROR(CheckObject(body));
  RETURN_IF_ERROR(ReadField(body, "model", &out->model));
  RETURN_IF_ERROR(RefuseUnsupported(body, out->chat));
  RETURN_IF_ERROR(ReadLabel(body, &out->generation.label));
  std::string ignored_user;
  RETURN_IF_ERROR(ReadField(body, "user", &ignored_user));
  RETURN_IF_ERROR(ReadStream(body, out));
  RETURN_IF_ERROR(ReadField(body, "return_token_ids", &out->return_token_ids));
  out->generation.returns_prompt_ids = out->return_token_ids;
  RETURN_IF_ERROR(ReadField(body, "return_tokens_as_token_ids", &out->tokens_as_ids));
  std::optional<int64_t> prompt_logprobs;
  RETURN_IF_ERROR(ReadField(body, "prompt_logprobs", &prompt_logprobs));
  if (prompt_logprobs.has_value() && out->stream) {
    return InvalidField("prompt_logprobs", "prompt_logprobs needs stream to be false.");
  }
  out->top_prompt_logprobs = prompt_logprobs.value_or(-1);
  out->generation.prompt_logprobs = prompt_logprobs;
  return ReadSampling(body, &out->generation);
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const Json& list, std::string_view param) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<int64_t> id = item.is_number_integer() ? AsInteger(item) : std::nullopt;
    if (!id.has_value() || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return WrongType(param, item,
                       "a string, a list of strings, a list of token ids or a list "
                       "of such lists");
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

absl::Status ReadPrompts(const Json& body, std::vector<Prompt>* out) {
  const Json* prompt = FindField(body, "prompt");
  if (prompt == nullptr) return InvalidField("prompt", "prompt is missing.");
  if (prompt->is_string()) {
    out->push_back(prompt->get<std::string>());
    return absl::OkStatus();
  }
  if (!prompt->is_array()) {
    return WrongType("prompt", *prompt,
                     "a string, a list of strings, a list of token ids or a "
                     "list of such lists");
  }
  if (prompt->empty()) return InvalidField("prompt", "prompt is an empty list.");
  if (prompt->front().is_number()) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadIds(*prompt, "prompt"));
    out->push_back(std::move(ids));
    return absl::OkStatus();
  }
  const bool texts = prompt->front().is_string();
  for (const Json& item : *prompt) {
    if (texts ? !item.is_string() : !item.is_array()) {
      return WrongType("prompt", item,
                       texts ? "a list of strings only" : "a list of lists of token ids");
    }
    if (texts) {
      out->push_back(item.get<std::string>());
    } else {
      ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadIds(item, "prompt"));
      out->push_back(std::move(ids));
    }
  }
  return absl::OkStatus();
}

// `logprobs` of /v1/completions: a number; false is what some clients send for none.
absl::Status ReadCompletionLogprobs(const Json& body, ApiRequest* out) {
  const Json* value = FindField(body, "logprobs");
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return absl::OkStatus();
  RETURN_IF_ERROR(ReadField(body, "logprobs", &out->generation.logprobs));
  out->top_logprobs = *out->generation.logprobs;
  if (out->generation.echo) {
    auto& prompt_logprobs = out->generation.prompt_logprobs;
    prompt_logprobs = std::max(prompt_logprobs.value_or(0), out->top_logprobs);
  }
  return absl::OkStatus();
}

absl::Status ReadChatLogprobs(const Json& body, ApiRequest* out) {
  bool logprobs = false;
  std::optional<int64_t> top;
  RETURN_IF_ERROR(ReadField(body, "logprobs", &logprobs));
  RETURN_IF_ERROR(ReadField(body, "top_logprobs", &top));
  out->generation.logprobs_param = "top_logprobs";
  if (logprobs) {
    out->top_logprobs = top.value_or(0);
    out->generation.logprobs = out->top_logprobs;
  } else if (top.value_or(0) != 0) {
    return InvalidField("top_logprobs", "top_logprobs needs logprobs to be true.");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletionRequest(const Json& body) {
  ApiRequest request;
  GenerationRequest& g = request.generation;
  RETURN_IF_ERROR(ReadShared(body, &request));
  RETURN_IF_ERROR(ReadPrompts(body, &g.prompts));
  RETURN_IF_ERROR(ReadField(body, "max_tokens", &g.max_tokens));
  RETURN_IF_ERROR(ReadField(body, "echo", &g.echo));
  RETURN_IF_ERROR(ReadCompletionLogprobs(body, &request));
  g.default_max_tokens = kDefaultCompletionTokens;
  return request;
}

absl::StatusOr<ApiRequest> ParseChatRequest(const Json& body) {
  ApiRequest request{.chat = true};
  GenerationRequest& g = request.generation;
  g.prompt_param = "messages";
  RETURN_IF_ERROR(ReadShared(body, &request));
  ASSIGN_OR_RETURN(ChatPrompt prompt, ParseChatPrompt(body));
  g.prompts.push_back(std::move(prompt));
  std::optional<int64_t> max_tokens;
  RETURN_IF_ERROR(ReadField(body, "max_tokens", &max_tokens));
  RETURN_IF_ERROR(ReadField(body, "max_completion_tokens", &g.max_tokens));
  if (g.max_tokens.has_value()) {
    g.max_tokens_param = "max_completion_tokens";
  } else {
    g.max_tokens = max_tokens;
  }
  RETURN_IF_ERROR(ReadChatLogprobs(body, &request));
  return request;
}

}  // namespace baton
