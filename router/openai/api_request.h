#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/generation/generation_request.h"
#include "router/openai/json.h"

namespace baton {

// A body of /v1/completions or /v1/chat/completions: what to generate and how to answer.
struct ApiRequest {
  GenerationRequest generation;
  std::string model;  // Empty = the served one.
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // Log probabilities name tokens "token_id:N".
  // Alternatives to show per token, -1 = no log probabilities.
  int64_t top_logprobs = -1;
  int64_t top_prompt_logprobs = -1;  // Of the `prompt_logprobs` extension.
};

// Null means absent, unknown fields are ignored. INVALID_ARGUMENT names the field: wrong types,
// and known fields that are not supported and would change the text.
absl::StatusOr<ApiRequest> ParseCompletionRequest(const Json& body);
absl::StatusOr<ApiRequest> ParseChatRequest(const Json& body);

// A prompt of `messages`, with template options; also used by /tokenize.
absl::StatusOr<ChatPrompt> ParseChatPrompt(const Json& body);

}  // namespace baton
