#include "router/openai/full_answer.h"

#include <iterator>
#include <utility>

#include "router/openai/error_response.h"
#include "router/openai/logprobs_json.h"

namespace baton {
namespace {

template <typename T>
void Append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

FullAnswer::FullAnswer(AnswerContext context, size_t num_choices,
                       std::shared_ptr<http::ResponseWriter> writer)
    : context_(std::move(context)), writer_(std::move(writer)), choices_(num_choices) {}

void FullAnswer::OnPrompt(PromptLogprobs prompt) { prompts_.push_back(std::move(prompt)); }

void FullAnswer::OnDelta(ChoiceDelta delta) {
  ChoiceDelta& choice = choices_[static_cast<size_t>(delta.choice)];
  choice.choice = delta.choice;
  choice.prompt = delta.prompt;
  choice.text += delta.text;
  Append(choice.tokens, std::move(delta.tokens));
  Append(choice.logprobs, std::move(delta.logprobs));
  Append(choice.logits_digests, std::move(delta.logits_digests));
  choice.finish = delta.finish;
  choice.stop_string = std::move(delta.stop_string);
  choice.stop_token = delta.stop_token;
}

Json FullAnswer::ChoiceJson(size_t index) {
  ChoiceDelta& choice = choices_[index];
  const ApiRequest& request = context_.request;
  Json out = {{"index", index}};
  const std::vector<TokenLogprobs>* scores = nullptr;
  for (const PromptLogprobs& prompt : prompts_) {
    if (prompt.prompt == choice.prompt) {
      scores = &prompt.tokens;
    }
  }
  if (request.chat) {
    out["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  } else if (request.generation.echo) {
    out["text"] = context_.prompt_texts[static_cast<size_t>(choice.prompt)] + choice.text;
    if (request.top_logprobs >= 0 && scores != nullptr) {
      choice.logprobs.insert(choice.logprobs.begin(), scores->begin(), scores->end());
    }
  } else {
    out["text"] = choice.text;
  }
  FillChoice(context_, choice, /*first=*/true, out);
  if (request.top_prompt_logprobs >= 0 && scores != nullptr) {
    out["prompt_logprobs"] = PromptLogprobsById(
        *scores, {.top = request.top_prompt_logprobs, .has_text = context_.has_tokenizer});
  }
  return out;
}

void FullAnswer::OnEnd(const absl::Status& status, const Usage& usage) {
  if (absl::IsCancelled(status)) {
    return writer_->Abort();  // Nobody is there to read an answer.
  }
  if (!status.ok()) {
    return writer_->Send(ErrorResponse(status));
  }
  Json body = AnswerHead(context_, /*chunk=*/false);
  Json choices = Json::array();
  for (size_t c = 0; c < choices_.size(); ++c) {
    choices.push_back(ChoiceJson(c));
  }
  body["choices"] = std::move(choices);
  body["usage"] = UsageJson(usage);
  if (context_.request.chat && context_.request.return_token_ids) {
    body["prompt_token_ids"] = context_.prompt_ids[0];
  }
  http::Response response = AnswerResponse(context_, /*stream=*/false);
  response.body = Dump(body);
  writer_->Send(std::move(response));
}

}  // namespace baton
