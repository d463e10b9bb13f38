#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/http/http_message.h"
#include "router/generation/generation_service.h"
#include "router/openai/api_request.h"
#include "router/openai/json.h"

namespace baton {

// What the answer to one request repeats, whatever its form.
struct AnswerContext {
  ApiRequest request;  // Without its prompts.
  std::string id;
  int64_t created = 0;  // Unix seconds.
  std::string model;
  std::string system_fingerprint;
  std::vector<std::vector<int32_t>> prompt_ids;  // With return_token_ids only.
  std::vector<std::string> prompt_texts;         // With echo only.
  std::shared_ptr<const Tokenizer> tokenizer;    // Null without one: tokens have no text.
};

// "stop", "length" or null, as JSON.
absl::string_view FinishReasonText(FinishReason finish);

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}.
Json UsageJson(const Usage& usage);

// id, object, created, model and system_fingerprint of an answer or a chunk.
Json AnswerHead(const AnswerContext& context, bool chunk);

// The same as text without the closing brace, and "choices":[ behind it.
std::string OpenAnswer(const AnswerContext& context, bool chunk);

// The head of the answer's HTTP response, without body.
http::Response AnswerResponse(const AnswerContext& context, bool stream);

}  // namespace baton
