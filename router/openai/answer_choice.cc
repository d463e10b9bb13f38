#include "router/openai/answer_choice.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "router/generation/token_details.h"
#include "router/openai/logprobs_json.h"

namespace baton {
namespace {

// The tokens of one logprobs object: of the echoed prompt, if any, and of the answer.
class ScoredTokens {
 public:
  ScoredTokens(const AnswerChoice& choice, bool with_prompt)
      : choice_(choice),
        num_prompt_(with_prompt && choice.prompt_scores != nullptr ? choice.prompt_scores->size()
                                                                   : 0) {}

  size_t size() const { return num_prompt_ + choice_.delta->logprobs.size(); }
  TokenScores::Token operator[](size_t i) const {
    return i < num_prompt_ ? (*choice_.prompt_scores)[i] : choice_.delta->logprobs[i - num_prompt_];
  }
  TokenLogprobs Described(size_t i) const {
    return DescribeScores(choice_.context->tokenizer.get(), (*this)[i]);
  }

 private:
  const AnswerChoice choice_;
  const size_t num_prompt_;
};

LogprobsFormat FormatOf(const AnswerContext& context, int64_t top) {
  return {.top = top,
          .as_ids = context.request.tokens_as_ids,
          .has_text = context.tokenizer != nullptr};
}

bool Echoes(const AnswerChoice& choice) {
  const ApiRequest& request = choice.context->request;
  return choice.first && !request.chat && request.generation.echo;
}

void AddText(const AnswerChoice& choice, TextPieces& out) {
  out.Add("\"");
  if (Echoes(choice)) {
    out.AddEscaped(choice.context,
                   choice.context->prompt_texts[static_cast<size_t>(choice.delta->prompt)]);
  }
  out.AddEscaped(choice.delta, choice.delta->text);
  out.Add("\"");
}

// The legacy object of /v1/completions.
void AddCompletionLogprobs(const AnswerChoice& choice, TextPieces& out) {
  const auto tokens = std::make_shared<const ScoredTokens>(choice, Echoes(choice));
  const LogprobsFormat format = FormatOf(*choice.context, choice.context->request.top_logprobs);
  out.Add("{\"text_offset\":");
  out.AddArray(tokens->size(), [tokens](size_t i, std::string& text) {
    absl::StrAppend(&text, (*tokens)[i].text_offset);
  });
  out.Add(",\"token_logprobs\":");
  out.AddArray(tokens->size(), [tokens](size_t i, std::string& text) {
    const TokenScores::Token token = (*tokens)[i];
    text += token.has_logprob ? LogprobText(token.chosen.logprob) : "null";
  });
  out.Add(",\"tokens\":");
  out.AddArray(tokens->size(), [tokens, format](size_t i, std::string& text) {
    text += Dump(TokenName(tokens->Described(i).chosen, format));
  });
  out.Add(",\"top_logprobs\":");
  out.AddArray(tokens->size(), [tokens, format](size_t i, std::string& text) {
    text += Dump(CompletionTop(tokens->Described(i), format));
  });
  out.Add("}");
}

void AddChatLogprobs(const AnswerChoice& choice, TextPieces& out) {
  const auto tokens = std::make_shared<const ScoredTokens>(choice, /*with_prompt=*/false);
  const LogprobsFormat format = FormatOf(*choice.context, choice.context->request.top_logprobs);
  out.Add("{\"content\":");
  out.AddArray(tokens->size(), [tokens, format](size_t i, std::string& text) {
    text += Dump(ChatItem(tokens->Described(i), format));
  });
  out.Add(",\"refusal\":null}");
}

void AddPromptLogprobs(const AnswerChoice& choice, TextPieces& out) {
  // Each token is named by its id there: the text is never an id.
  const LogprobsFormat format{.top = choice.context->request.top_prompt_logprobs,
                              .has_text = choice.context->tokenizer != nullptr};
  out.Add(",\"prompt_logprobs\":");
  out.AddArray(choice.prompt_scores->size(), [choice, format](size_t i, std::string& text) {
    text += Dump(PromptItem(
        DescribeScores(choice.context->tokenizer.get(), (*choice.prompt_scores)[i]), format));
  });
}

void AddIds(std::shared_ptr<const void> owner, const std::vector<int32_t>& ids, TextPieces& out) {
  out.AddArray(ids.size(), [owner = std::move(owner), &ids](size_t i, std::string& text) {
    absl::StrAppend(&text, ids[i]);
  });
}

std::string StopReason(const ChoiceDelta& delta) {
  if (delta.stop_string.has_value()) return Dump(Json(*delta.stop_string));
  return delta.stop_token.has_value() ? absl::StrCat(*delta.stop_token) : "null";
}

void AddTokens(const AnswerChoice& choice, TextPieces& out) {
  const AnswerContext& context = *choice.context;
  const ChoiceDelta& delta = *choice.delta;
  if (context.request.return_token_ids) {
    out.Add(",\"token_ids\":");
    AddIds(choice.delta, delta.tokens, out);
    if (choice.first) {
      out.Add(",\"prompt_token_ids\":");
      AddIds(choice.context, context.prompt_ids[static_cast<size_t>(delta.prompt)], out);
    }
  }
  if (context.request.generation.logits_digests) {
    out.Add(",\"logits_digests\":");
    // Text: a JSON number of 64 bits loses its last digits in many clients.
    out.AddArray(delta.logits_digests.size(),
                 [of = choice.delta](size_t i, std::string& text) {
                   absl::StrAppendFormat(&text, "\"%016x\"", of->logits_digests[i]);
                 });
  }
}

}  // namespace

void AddChoice(const AnswerChoice& choice, TextPieces& out) {
  const ApiRequest& request = choice.context->request;
  out.Add(absl::StrCat("{\"index\":", choice.delta->choice));
  if (!request.chat) {
    out.Add(",\"text\":");
    AddText(choice, out);
  } else {
    out.Add(choice.chunk ? ",\"delta\":{\"content\":"
                         : ",\"message\":{\"role\":\"assistant\",\"content\":");
    AddText(choice, out);
    out.Add(choice.chunk ? "}" : ",\"refusal\":null}");
  }
  out.Add(",\"logprobs\":");
  if (request.top_logprobs < 0) {
    out.Add("null");
  } else if (request.chat) {
    AddChatLogprobs(choice, out);
  } else {
    AddCompletionLogprobs(choice, out);
  }
  out.Add(absl::StrCat(",\"finish_reason\":", FinishReasonText(choice.delta->finish),
                       ",\"stop_reason\":", StopReason(*choice.delta)));
  AddTokens(choice, out);
  if (!choice.chunk && request.top_prompt_logprobs >= 0 && choice.prompt_scores != nullptr) {
    AddPromptLogprobs(choice, out);
  }
  out.Add("}");
}

}  // namespace baton
