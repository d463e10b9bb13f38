#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  bool has_tokenizer = true;
};

// "stop", "length" or null.
Json FinishReasonJson(FinishReason finish);

// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}.
Json UsageJson(const Usage& usage);

// id, object, created, model and system_fingerprint of an answer or a chunk.
Json AnswerHead(const AnswerContext& context, bool chunk);

// Everything of a choice but its text: index, logprobs, finish_reason, stop_reason and what was
// asked for of token_ids, prompt_token_ids (if `first`) and logits_digests.
void FillChoice(const AnswerContext& context, const ChoiceDelta& choice, bool first, Json& out);

// The head of the answer's HTTP response, without body.
http::Response AnswerResponse(const AnswerContext& context, bool stream);

}  // namespace baton
