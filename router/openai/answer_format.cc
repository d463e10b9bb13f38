#include "router/openai/answer_format.h"


namespace baton {

absl::string_view FinishReasonText(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "\"stop\"";
    case FinishReason::kLength:
      return "\"length\"";
    case FinishReason::kNone:
      break;
  }
  return "null";
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

std::string OpenAnswer(const AnswerContext& context, bool chunk) {
  std::string head = Dump(AnswerHead(context, chunk));
  head.pop_back();
  return head + ",\"choices\":[";
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
