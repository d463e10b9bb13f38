#include "router/openai/stream_answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/openai/answer_choice.h"
#include "router/openai/error_response.h"

namespace baton {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string Data(const Json& data) { return absl::StrCat("data: ", Dump(data), "\n\n"); }

}  // namespace

StreamAnswer::StreamAnswer(AnswerContext context, size_t num_choices, int64_t prompt_tokens,
                           std::shared_ptr<http::ResponseWriter> writer)
    : context_(std::make_shared<const AnswerContext>(std::move(context))),
      writer_(std::move(writer)),
      event_head_(absl::StrCat("data: ", OpenAnswer(*context_, /*chunk=*/true))),
      begun_(num_choices),
      pending_(num_choices) {
  usage_.prompt_tokens = prompt_tokens;
}

void StreamAnswer::OnPrompt(PromptLogprobs prompt) {
  prompts_.resize(std::max(prompts_.size(), static_cast<size_t>(prompt.prompt) + 1));
  prompts_[static_cast<size_t>(prompt.prompt)] = std::move(prompt.tokens);
}

void StreamAnswer::OnDelta(ChoiceDelta delta) {
  pending_.Append(std::move(delta));
  Pump();
}

void StreamAnswer::OnEnd(const absl::Status& status, const Usage& usage) {
  if (absl::IsCancelled(status)) {
    finished_ = true;
    return writer_->Abort();
  }
  if (!status.ok() && !streaming_ && pending_.empty()) {
    finished_ = true;
    return writer_->Respond(ErrorResponse(status));
  }
  ended_ = Ended{status, usage};
  Pump();
}

std::string StreamAnswer::UsageSoFar() const {
  if (context_->request.continuous_usage) {
    return absl::StrCat(",\"usage\":", Dump(UsageJson(usage_)));
  }
  return context_->request.include_usage ? ",\"usage\":null" : "";
}

void StreamAnswer::AddRole(size_t index) {
  const Json choice = {{"index", index},
                       {"delta", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}};
  event_.Add(absl::StrCat(event_head_, Dump(choice), "]", UsageSoFar(), "}\n\n"));
}

void StreamAnswer::AddNextEvent() {
  if (pending_.empty()) return AddLastEvents();
  const auto delta = std::make_shared<const ChoiceDelta>(pending_.Take());
  GiveBack(*delta);
  const auto index = static_cast<size_t>(delta->choice);
  const auto prompt = static_cast<size_t>(delta->prompt);
  const bool first = !begun_[index];
  begun_[index] = true;
  usage_.completion_tokens += static_cast<int64_t>(delta->tokens.size());
  if (first && context_->request.chat) AddRole(index);
  event_.Add(event_head_);
  AddChoice({.context = context_,
             .delta = delta,
             .prompt_scores = prompt < prompts_.size() ? prompts_[prompt] : nullptr,
             .chunk = true,
             .first = first},
            event_);
  event_.Add(absl::StrCat("]", UsageSoFar(), "}\n\n"));
}

void StreamAnswer::AddLastEvents() {
  if (!ended_->status.ok()) {
    event_.Add(Data({{"error", ErrorObject(ended_->status)}}));
  } else if (context_->request.include_usage) {
    Json chunk = AnswerHead(*context_, /*chunk=*/true);
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(ended_->usage);
    event_.Add(Data(chunk));
  }
  event_.Add(kDone);
  finished_ = true;
}

// What is there goes out in one write, so that a token is one packet; while it waits for room, the
// connection holds it.
void StreamAnswer::Pump() {
  if (awaits_room_) return;
  for (size_t made = 0; made < kTurnBytes && HasMore() && writer_->HasRoom();) {
    std::string piece;
    while (HasMore() && piece.size() < kPieceBytes) {
      if (event_.done()) {
        if (finished_) break;
        AddNextEvent();
      }
      event_.Fill(kPieceBytes, piece);
    }
    made += piece.size();
    Write(std::move(piece));
    if (finished_ && event_.done()) return writer_->Finish(/*close=*/!ended_->status.ok());
  }
  if (HasMore()) {
    awaits_room_ = true;
    writer_->OnRoom([self = shared_from_this()] {
      self->awaits_room_ = false;
      self->Pump();
    });
  }
}

void StreamAnswer::Write(std::string piece) {
  if (!std::exchange(streaming_, true)) {
    http::Response response = AnswerResponse(*context_, /*stream=*/true);
    response.body = std::move(piece);
    return writer_->StartStream(std::move(response));
  }
  writer_->Write(std::move(piece));
}

}  // namespace baton
