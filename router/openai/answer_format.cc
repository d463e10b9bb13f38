#include "router/openai/answer_format.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "router/openai/logprobs_json.h"

namespace baton {

Json FinishReasonJson(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kNone:
      break;
  }
  return nullptr;
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json AnswerHead(const AnswerContext& context, bool chunk) {
  const char* object = !context.request.chat ? "text_completion"
                       : chunk               ? "chat.completion.chunk"
                                             : "chat.completion";
  return {{"id", context.id},
          {"object", object},
          {"created", context.created},
          {"model", context.model},
          {"system_fingerprint", context.system_fingerprint}};
}

void FillChoice(const AnswerContext& context, const ChoiceDelta& choice, bool first, Json& out) {
  const ApiRequest& request = context.request;
  out["logprobs"] = nullptr;
  if (request.top_logprobs >= 0) {
    const LogprobsFormat format{.top = request.top_logprobs,
                                .as_ids = request.tokens_as_ids,
                                .has_text = context.has_tokenizer};
    out["logprobs"] = request.chat ? ChatLogprobs(choice.logprobs, format)
                                   : CompletionLogprobs(choice.logprobs, format);
  }
  out["finish_reason"] = FinishReasonJson(choice.finish);
  out["stop_reason"] = choice.stop_string.has_value()  ? Json(*choice.stop_string)
                       : choice.stop_token.has_value() ? Json(*choice.stop_token)
                                                       : Json(nullptr);
  if (request.return_token_ids) {
    out["token_ids"] = choice.tokens;
    if (first) {
      out["prompt_token_ids"] = context.prompt_ids[static_cast<size_t>(choice.prompt)];
    }
  }
  if (request.generation.logits_digests) {
    // Text: a JSON number of 64 bits loses its last digits in many clients.
    Json digests = Json::array();
    for (const uint64_t digest : choice.logits_digests) {
      digests.push_back(absl::StrFormat("%016x", digest));
    }
    out["logits_digests"] = std::move(digests);
  }
}

http::Response AnswerResponse(const AnswerContext& context, bool stream) {
  http::Response response;
  response.headers.push_back({"X-Request-Id", context.id});
  if (stream) {
    response.content_type = "text/event-stream; charset=utf-8";
    response.headers.push_back({"Cache-Control", "no-cache"});
    response.headers.push_back({"X-Accel-Buffering", "no"});
  }
  return response;
}

}  // namespace baton
