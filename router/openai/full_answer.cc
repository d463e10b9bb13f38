#include "router/openai/full_answer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/openai/answer_choice.h"
#include "router/openai/error_response.h"
#include "router/openai/piece_sender.h"

namespace baton {
namespace {

template <typename T>
void Append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

FullAnswer::FullAnswer(AnswerContext context, size_t num_choices,
                       std::shared_ptr<http::ResponseWriter> writer)
    : context_(std::make_shared<const AnswerContext>(std::move(context))),
      writer_(std::move(writer)),
      choices_(num_choices) {}

void FullAnswer::OnPrompt(PromptLogprobs prompt) {
  prompts_.resize(std::max(prompts_.size(), static_cast<size_t>(prompt.prompt) + 1));
  prompts_[static_cast<size_t>(prompt.prompt)] = std::move(prompt.tokens);
}

void FullAnswer::OnDelta(ChoiceDelta delta) {
  ChoiceDelta& choice = choices_[static_cast<size_t>(delta.choice)];
  choice.choice = delta.choice;
  choice.prompt = delta.prompt;
  choice.text += delta.text;
  Append(choice.tokens, std::move(delta.tokens));
  choice.logprobs.Append(delta.logprobs);
  Append(choice.logits_digests, std::move(delta.logits_digests));
  choice.finish = delta.finish;
  choice.stop_string = std::move(delta.stop_string);
  choice.stop_token = delta.stop_token;
}

// The choices one after another, each let go when it is written.
TextPieces FullAnswer::Body(const Usage& usage) {
  TextPieces body;
  body.Add(OpenAnswer(*context_, /*chunk=*/false));
  body.AddSteps([choices = std::make_shared<std::vector<ChoiceDelta>>(std::move(choices_)),
                 prompts = std::move(prompts_), context = context_, next = size_t{0},
                 current = TextPieces()](std::string& out) mutable {
    if (current.done() && next < choices->size()) {
      ChoiceDelta& choice = (*choices)[next];
      const auto prompt = static_cast<size_t>(choice.prompt);
      current.Add(next++ == 0 ? "" : ",");
      AddChoice({.context = context,
                 .delta = std::make_shared<const ChoiceDelta>(std::move(choice)),
                 .prompt_scores = prompt < prompts.size() ? prompts[prompt] : nullptr},
                current);
    }
    current.FillOne(out);
    return !current.done() || next < choices->size();
  });
  body.Add(absl::StrCat("],\"usage\":", Dump(UsageJson(usage))));
  if (context_->request.chat && context_->request.return_token_ids) {
    body.Add(",\"prompt_token_ids\":");
    body.AddArray(context_->prompt_ids[0].size(), [context = context_](size_t i, std::string& out) {
      absl::StrAppend(&out, context->prompt_ids[0][i]);
    });
  }
  body.Add("}");
  return body;
}

void FullAnswer::OnEnd(const absl::Status& status, const Usage& usage) {
  if (absl::IsCancelled(status)) {
    return writer_->Abort();  // Nobody is there to read an answer.
  }
  if (!status.ok()) return writer_->Respond(ErrorResponse(status));
  SendPieces(writer_, AnswerResponse(*context_, /*stream=*/false), Body(usage), shared_from_this());
}

}  // namespace baton
