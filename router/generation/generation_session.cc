#include "router/generation/generation_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "router/error.h"
#include "router/generation/token_details.h"
#include "router/generation/utf8.h"

namespace baton {
namespace {

// What tokens take that wait for the log probabilities of their prompt. Their own are counted by
// themselves.
int64_t WaitingBytes(const ChoiceTokens& tokens) {
  return static_cast<int64_t>(sizeof(ChoiceTokens) + tokens.outputs.size() * sizeof(TokenOutput));
}

// Of an answer whose end nobody has named: there is not so much, or not so much left.
absl::Status TooManyScores(const AnswerBudget::Share& share, int64_t more) {
  if (share.IsTooMuch(more)) {
    return InvalidField(
        "max_tokens", absl::StrFormat("The log probabilities of this answer take more than the %d "
                                      "bytes that are allowed; set a smaller max_tokens.",
                                      share.most()));
  }
  return absl::ResourceExhaustedError(
      "too many answers hold log probabilities; try again, or set max_tokens");
}

absl::Status TooMuchText() {
  return absl::ResourceExhaustedError(
      "too much text waits for readers that do not take it; ask for less, or read streams faster");
}

}  // namespace

GenerationSession::GenerationSession(Setup setup)
    : setup_(std::move(setup)),
      num_choices_(setup_.prepared.request.num_choices),
      sampling_(setup_.prepared.request.sampling),
      start_(Now()) {
  const auto new_decoder = [this] {
    return setup_.tokenizer != nullptr
               ? setup_.tokenizer->NewStreamDecoder(setup_.prepared.skip_special_tokens)
               : nullptr;
  };
  auto prompts = std::move(setup_.prepared.request.prompts);
  prompt_states_.resize(prompts.size());
  for (size_t p = 0; p < setup_.prepared.prompt_texts.size(); ++p) {
    prompt_states_[p].text_length = CodePoints(setup_.prepared.prompt_texts[p]);
  }
  setup_.prepared.prompt_texts = {};
  for (size_t p = 0; sampling_.num_prompt_logprobs >= 0 && p < prompts.size(); ++p) {
    prompt_states_[p].scorer = std::make_unique<PromptScorer>(
        std::move(prompts[p]), sampling_.num_prompt_logprobs, new_decoder());
  }
  const size_t total = prompts.size() * static_cast<size_t>(num_choices_);
  choices_.reserve(total);
  for (size_t c = 0; c < total; ++c) {
    choices_.push_back({ChoiceText(new_decoder(), &setup_.prepared.stop, sampling_.min_tokens)});
  }
  usage_.prompt_tokens = setup_.prepared.prompt_tokens;
}

GenerationSession::~GenerationSession() { Abandon(); }

void GenerationSession::Submitted(uint64_t key) {
  bool cancelled = false;
  std::vector<int32_t> stopped;
  {
    absl::MutexLock lock(&mutex_);
    key_ = key;
    cancelled = cancelled_;
    stopped.swap(stopped_);
  }
  for (const int32_t choice : stopped) setup_.frontend->StopChoice(key, choice);
  if (cancelled) setup_.frontend->Cancel(key);
}

void GenerationSession::Release(std::optional<int64_t> used_tokens) {
  if (setup_.release) std::exchange(setup_.release, {})(used_tokens);
}

void GenerationSession::OnEvent(ClientEvent event) {
  if (!setup_.executor) {
    Receive(std::move(event));
    return;
  }
  setup_.executor([self = shared_from_this(), event = std::move(event)]() mutable {
    self->Receive(std::move(event));
  });
}

void GenerationSession::Cancel() {
  std::optional<uint64_t> key;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(cancelled_, true)) return;
    key = key_;
  }
  if (key.has_value()) setup_.frontend->Cancel(*key);
}

void GenerationSession::StopChoice(int32_t index) {
  std::optional<uint64_t> key;
  {
    absl::MutexLock lock(&mutex_);
    key = key_;
    if (!key.has_value()) stopped_.push_back(index);
  }
  if (key.has_value()) setup_.frontend->StopChoice(*key, index);
}

void GenerationSession::Receive(ClientEvent event) {
  if (ended_) return;
  std::visit([this](auto&& e) { Receive(std::move(e)); }, std::move(event));
}

void GenerationSession::Receive(PromptScored scored) {
  if (scored.prompt < 0 || static_cast<size_t>(scored.prompt) >= prompt_states_.size()) {
    return Fail(absl::InternalError("scores of an unknown prompt"));
  }
  PromptState& state = prompt_states_[scored.prompt];
  if (state.scorer == nullptr || !failure_.ok()) return;
  if (!state.scorer->Add(scored.logprobs)) {
    return Fail(absl::InternalError("scores of a prompt are not in order"));
  }
  if (!IsScored(scored.prompt)) return;
  for (ChoiceTokens& tokens : std::exchange(state.waiting, {})) {
    setup_.share->Hold(-WaitingBytes(tokens));
    Receive(std::move(tokens));
  }
}

// Whether nothing is owed of a prompt's log probabilities; the sink hears of them once they are
// complete.
bool GenerationSession::IsScored(int32_t prompt) {
  std::unique_ptr<PromptScorer>& scorer = prompt_states_[prompt].scorer;
  if (scorer != nullptr && scorer->complete()) {
    setup_.sink->OnPrompt({.prompt = prompt, .tokens = scorer->Finish()});
    scorer.reset();
  }
  return scorer == nullptr;
}

void GenerationSession::Receive(ChoiceTokens tokens) {
  if (tokens.choice < 0 || static_cast<size_t>(tokens.choice) >= choices_.size()) {
    return Fail(absl::InternalError("tokens of an unknown choice"));
  }
  const int32_t prompt = tokens.choice / num_choices_;
  if (!failure_.ok()) return;
  if (!IsScored(prompt)) {
    if (!setup_.share->Hold(WaitingBytes(tokens))) return Fail(TooMuchText());
    prompt_states_[prompt].waiting.push_back(std::move(tokens));
    return;
  }
  Choice& choice = choices_[tokens.choice];
  if (choice.finish != FinishReason::kNone || tokens.outputs.empty()) {
    return;  // What was under way when a stop string was found.
  }
  Observe(choice);
  ChoiceDelta delta{.choice = tokens.choice, .prompt = prompt};
  for (const TokenOutput& output : tokens.outputs) {
    PushToken(tokens.choice, output, delta);
    if (!failure_.ok()) return;
    if (choice.finish != FinishReason::kNone) break;
  }
  setup_.sink->OnDelta(std::move(delta));
}

void GenerationSession::PushToken(int32_t index, const TokenOutput& output, ChoiceDelta& delta) {
  Choice& choice = choices_[index];
  if (setup_.prepared.counts_tokens) {
    const int64_t bytes = TokenScores::BytesPerToken(static_cast<int64_t>(output.top.size()));
    if (!setup_.share->Grow(bytes)) return Fail(TooManyScores(*setup_.share, bytes));
  }
  if (sampling_.num_logprobs >= 0) {
    const int64_t offset = prompt_states_[delta.prompt].text_length + choice.text.length();
    delta.logprobs.Add({.chosen = {.token = output.token, .logprob = output.logprob},
                        .text_offset = offset,
                        .top = output.top});
  }
  if (sampling_.logits_digest) delta.logits_digests.push_back(output.logits_digest);
  delta.tokens.push_back(output.token);
  ++usage_.completion_tokens;
  auto piece = choice.text.Push(output.token, /*hidden=*/output.finish == FinishReason::kStop,
                                /*last=*/output.finish != FinishReason::kNone);
  if (!piece.ok()) return Fail(absl::InternalError(piece.status().message()));
  if (!setup_.share->Hold(HeldBytes(1, piece->text.size()))) return Fail(TooMuchText());
  delta.text += piece->text;
  if (piece->stop.has_value()) {
    delta.stop_string = std::move(piece->stop);
    if (output.finish == FinishReason::kNone) StopChoice(index);
    return FinishChoice(index, FinishReason::kStop, delta);
  }
  if (output.finish == FinishReason::kStop) {
    const auto& ids = sampling_.stop_token_ids;
    if (std::find(ids.begin(), ids.end(), output.token) != ids.end()) {
      delta.stop_token = output.token;
    }
  }
  if (output.finish != FinishReason::kNone) FinishChoice(index, output.finish, delta);
}

void GenerationSession::FinishChoice(int32_t index, FinishReason finish, ChoiceDelta& delta) {
  choices_[index].finish = finish;
  delta.finish = finish;
}

void GenerationSession::Receive(RequestEnded ended) {
  if (!failure_.ok()) return End(failure_, ended.cached_tokens);
  if (!ended.status.ok()) return End(std::move(ended.status), ended.cached_tokens);
  const bool score_only = setup_.prepared.request.score_only;
  for (size_t c = 0; c < choices_.size(); ++c) {
    const auto prompt = static_cast<int32_t>(c) / num_choices_;
    if (!IsScored(prompt) || (!score_only && choices_[c].finish == FinishReason::kNone)) {
      return End(absl::InternalError("the answer ended early"), ended.cached_tokens);
    }
    if (score_only) {
      ChoiceDelta delta{.choice = static_cast<int32_t>(c),
                        .prompt = static_cast<int32_t>(c) / num_choices_};
      FinishChoice(static_cast<int32_t>(c), FinishReason::kLength, delta);
      setup_.sink->OnDelta(std::move(delta));
    }
  }
  End(absl::OkStatus(), ended.cached_tokens);
}

// A defect of our own: ends the request everywhere; the sink hears of it with the node's end.
void GenerationSession::Fail(absl::Status status) {
  failure_ = std::move(status);
  Cancel();
}

void GenerationSession::End(absl::Status status, int64_t cached_tokens) {
  ended_ = true;
  usage_.cached_tokens = cached_tokens;
  if (setup_.observer != nullptr) setup_.observer->OnRequestEnd(status, Now() - start_, usage_);
  // One that was refused behind the edge costs nothing, wherever that was. What a client gives up
  // may have been computed up to its first token, and what is cut here was.
  const bool given_up = absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
  const bool was_used = status.ok() || given_up || usage_.completion_tokens > 0 || !failure_.ok();
  Release(was_used ? std::optional(usage_.prompt_tokens + usage_.completion_tokens) : std::nullopt);
  setup_.sink->OnEnd(status, usage_);
  setup_.sink.reset();
  setup_.share.reset();
  // This may be held until the client has all of the answer.
  choices_.clear();
  prompt_states_.clear();
}

void GenerationSession::Observe(Choice& choice) {
  if (setup_.observer == nullptr) return;
  const Time now = Now();
  if (!std::exchange(first_token_seen_, true)) setup_.observer->OnFirstToken(now - start_);
  if (choice.last_token.has_value()) setup_.observer->OnNextToken(now - *choice.last_token);
  choice.last_token = now;
}

}  // namespace baton
