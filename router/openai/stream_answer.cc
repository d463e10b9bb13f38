#include "router/openai/stream_answer.h"

#include <utility>

#include "router/openai/error_response.h"

namespace baton {
namespace {

void AppendData(const Json& data, std::string& out) {
  out.append("data: ").append(Dump(data)).append("\n\n");
}

constexpr std::string_view kDone = "data: [DONE]\n\n";

}  // namespace

StreamAnswer::StreamAnswer(AnswerContext context, size_t num_choices, int64_t prompt_tokens,
                           std::shared_ptr<http::ResponseWriter> writer)
    : context_(std::move(context)), writer_(std::move(writer)), begun_(num_choices) {
  usage_.prompt_tokens = prompt_tokens;
}

void StreamAnswer::OnPrompt(PromptLogprobs prompt) { prompts_.push_back(std::move(prompt)); }

void StreamAnswer::AppendEvent(Json choices, std::string& out) {
  Json chunk = AnswerHead(context_, /*chunk=*/true);
  chunk["choices"] = std::move(choices);
  if (context_.request.continuous_usage) {
    chunk["usage"] = UsageJson(usage_);
  } else if (context_.request.include_usage) {
    chunk["usage"] = nullptr;
  }
  AppendData(chunk, out);
}

void StreamAnswer::Send(std::string events) {
  if (!std::exchange(streaming_, true)) {
    http::Response response = AnswerResponse(context_, /*stream=*/true);
    response.body = std::move(events);
    return writer_->StartStream(std::move(response));
  }
  writer_->Write(std::move(events));
}

void StreamAnswer::OnDelta(ChoiceDelta delta) {
  const ApiRequest& request = context_.request;
  const auto index = static_cast<size_t>(delta.choice);
  const bool first = !begun_[index];
  begun_[index] = true;
  usage_.completion_tokens += static_cast<int64_t>(delta.tokens.size());
  std::string events;
  Json choice = {{"index", index}};
  if (request.chat) {
    if (first) {
      AppendEvent(Json::array({{{"index", index},
                                {"delta", {{"role", "assistant"}, {"content", ""}}},
                                {"logprobs", nullptr},
                                {"finish_reason", nullptr}}}),
                  events);
    }
    choice["delta"] = {{"content", delta.text}};
  } else {
    if (first && request.generation.echo) {
      delta.text.insert(0, context_.prompt_texts[static_cast<size_t>(delta.prompt)]);
      for (const PromptLogprobs& prompt : prompts_) {
        if (prompt.prompt == delta.prompt && request.top_logprobs >= 0) {
          delta.logprobs.insert(delta.logprobs.begin(), prompt.tokens.begin(), prompt.tokens.end());
        }
      }
    }
    choice["text"] = delta.text;
  }
  FillChoice(context_, delta, first, choice);
  AppendEvent(Json::array({std::move(choice)}), events);
  Send(std::move(events));
}

void StreamAnswer::OnEnd(const absl::Status& status, const Usage& usage) {
  if (absl::IsCancelled(status)) {
    return writer_->Abort();
  }
  if (!status.ok() && !streaming_) {
    return writer_->Send(ErrorResponse(status));
  }
  std::string events;
  if (!status.ok()) {
    AppendData({{"error", ErrorObject(status)}}, events);
  } else if (context_.request.include_usage) {
    Json chunk = AnswerHead(context_, /*chunk=*/true);
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(usage);
    AppendData(chunk, events);
  }
  events.append(kDone);
  Send(std::move(events));
  writer_->Finish(/*close=*/!status.ok());
}

}  // namespace baton
