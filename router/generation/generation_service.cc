#include "router/generation/generation_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "router/error.h"
#include "router/generation/generation_session.h"
#include "router/generation/token_details.h"
#include "router/generation/utf8.h"
#include "router/generation/validate.h"

namespace baton {
namespace {

// More bytes than this per token of the model's length never fit: no common tokenizer has longer
// tokens. Keeps hostile text from being tokenized in vain.
constexpr int64_t kMaxBytesPerToken = 256;

absl::Status CheckText(std::string_view text, const GenerationLimits& limits,
                       std::string_view param) {
  const int64_t most =
      std::min(limits.max_prompt_bytes, kMaxBytesPerToken * std::max(limits.max_model_len, 1));
  if (static_cast<int64_t>(text.size()) > most) {
    return WithErrorCode(
        InvalidField(param, absl::StrFormat("%s has %d bytes; this model's maximum context length "
                                            "is %d tokens, which is never more than %d bytes.",
                                            param, text.size(), limits.max_model_len, most)),
        "context_length_exceeded");
  }
  if (!IsValidUtf8(text)) {
    return InvalidField(param, absl::StrFormat("%s is not valid UTF-8.", param));
  }
  return absl::OkStatus();
}

// Takes what the answer is to hold until its reader has taken it; of what is repeated, one copy.
// `param` asks for that. What an empty budget would not give is refused for good.
absl::Status Reserve(int64_t bytes, std::string_view param, PreparedGeneration& prepared) {
  prepared.answer_bytes += bytes;
  if (prepared.share->Grow(bytes)) return absl::OkStatus();
  const std::string what = absl::StrFormat(
      "The log probabilities and the prompts that this answer returns take %d bytes or more",
      prepared.answer_bytes);
  if (prepared.share->IsTooMuch(bytes)) {
    return InvalidField(param, absl::StrFormat("%s; at most %d are allowed. Ask for less, or send "
                                               "several requests.",
                                               what, prepared.share->most()));
  }
  return absl::ResourceExhaustedError(
      what + ", and too many such answers are under way; try again, or ask for less.");
}

absl::Status ReserveScores(const GenerationRequest& request, PreparedGeneration& prepared) {
  const SamplingParams& s = prepared.request.sampling;
  int64_t bytes = 0;
  if (s.num_prompt_logprobs >= 0) {
    bytes += prepared.prompt_tokens * TokenScores::BytesPerToken(s.num_prompt_logprobs);
  }
  const bool scores_tokens = s.num_logprobs >= 0 && !prepared.request.score_only;
  prepared.counts_tokens = scores_tokens && !request.max_tokens.has_value();
  if (scores_tokens && !prepared.counts_tokens) {
    const auto choices =
        static_cast<int64_t>(prepared.request.prompts.size()) * prepared.request.num_choices;
    bytes += choices * s.max_tokens * TokenScores::BytesPerToken(s.num_logprobs);
  }
  return Reserve(bytes, request.logprobs ? request.logprobs_param : "prompt_logprobs", prepared);
}

// The tokenizer's error, about a field of the request.
absl::Status AboutField(const absl::Status& status, std::string_view param) {
  if (!absl::IsInvalidArgument(status) || !ErrorParam(status).empty()) return status;
  return InvalidField(param, absl::StrFormat("%s: %s", param, status.message()));
}

// What the request may use: fewer than 2^63, as sequences and tokens have caps.
int64_t MostTokens(const PreparedGeneration& prepared) {
  const ValidRequest& request = prepared.request;
  if (request.score_only) return prepared.prompt_tokens;
  const int64_t choices = static_cast<int64_t>(request.prompts.size()) * request.num_choices;
  return prepared.prompt_tokens + choices * request.sampling.max_tokens;
}

}  // namespace

GenerationService::GenerationService(GenerationServiceOptions options,
                                     std::shared_ptr<const Tokenizer> tokenizer,
                                     RouterFrontend* frontend)
    : options_(std::move(options)),
      tokenizer_(std::move(tokenizer)),
      frontend_(frontend),
      quotas_(std::make_shared<TenantQuotas>(
          options_.tenants, TenantLimits{.concurrency = options_.limits.max_requests_per_tenant})),
      budget_(std::make_shared<AnswerBudget>(options_.limits.max_answer_bytes)),
      random_(options_.random_seed) {}

absl::Status GenerationService::CheckRoom(const std::string& tenant) const {
  RETURN_IF_ERROR(quotas_->Check(tenant, QuotaNow()));
  absl::Status room = frontend_->CheckRoom(tenant);
  if (!room.ok() && options_.observer != nullptr) options_.observer->OnRefusal(room);
  return room;
}

absl::StatusOr<PreparedGeneration> GenerationService::Prepare(const GenerationRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request, options_.limits, has_tokenizer()));
  RETURN_IF_ERROR(CheckRoom(request.tenant));
  PreparedGeneration prepared;
  std::vector<std::vector<int32_t>> prompts;
  prompts.reserve(request.prompts.size());
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    ASSIGN_OR_RETURN(
        std::vector<int32_t> ids,
        TokensOf(request.prompts[p], request.add_special_tokens, request.prompt_param, &request));
    prepared.prompt_tokens += static_cast<int64_t>(ids.size());
    prompts.push_back(std::move(ids));
  }
  ASSIGN_OR_RETURN(prepared.request, BuildValidRequest(request, std::move(prompts), options_.limits,
                                                       options_.defaults, NextRandom()));
  prepared.share = budget_->NewShare(request.tenant);
  RETURN_IF_ERROR(ReserveScores(request, prepared));
  if (request.returns_prompt_ids) {
    const auto id_bytes = static_cast<int64_t>(sizeof(int32_t));
    RETURN_IF_ERROR(Reserve(prepared.prompt_tokens * id_bytes, "return_token_ids", prepared));
  }
  for (size_t p = 0; request.echo && p < request.prompts.size(); ++p) {
    RETURN_IF_ERROR(Echo(request, p, prepared));
  }
  prepared.stop = request.stop;
  prepared.echo = request.echo;
  prepared.skip_special_tokens = request.skip_special_tokens;
  return prepared;
}

// A few bytes of ids can be a hundred times as much text, so it is counted before it is made.
absl::Status GenerationService::Echo(const GenerationRequest& request, size_t prompt,
                                     PreparedGeneration& prepared) const {
  std::string& echo = prepared.prompt_texts.emplace_back();
  if (const auto* text = std::get_if<std::string>(&request.prompts[prompt])) {
    RETURN_IF_ERROR(Reserve(static_cast<int64_t>(text->size()), "echo", prepared));
    echo = *text;
    return absl::OkStatus();
  }
  if (!has_tokenizer()) return absl::OkStatus();
  const std::vector<int32_t>& ids = prepared.request.prompts[prompt];
  int64_t bytes = 0;
  for (const int32_t id : ids) bytes += static_cast<int64_t>(tokenizer_->TokenBytes(id).size());
  RETURN_IF_ERROR(Reserve(bytes, "echo", prepared));
  ASSIGN_OR_RETURN(echo, tokenizer_->Decode(ids, request.skip_special_tokens));
  // Special tokens may be left out, and bytes that are no text become a character of three.
  return Reserve(static_cast<int64_t>(echo.size()) - bytes, "echo", prepared);
}

// What gives back the rest of a reservation. May outlive the service.
std::function<void(std::optional<int64_t> used_tokens)> GenerationService::Releaser(
    const Reservation& reservation) const {
  return
      [quotas = quotas_, clock = options_.quota_clock, reservation](std::optional<int64_t> used) {
        const QuotaTime now = clock ? clock() : QuotaTime();
        if (!used.has_value()) return quotas->Undo(reservation, now);
        quotas->Release(reservation, reservation.tokens - std::min(*used, reservation.tokens), now);
      };
}

absl::StatusOr<std::shared_ptr<Generation>> GenerationService::Start(
    PreparedGeneration prepared, std::shared_ptr<GenerationSink> sink, SerialExecutor executor) {
  std::shared_ptr<AnswerBudget::Share> share = std::move(prepared.share);
  sink->Keep(share);
  const std::string tenant = prepared.request.tenant;
  const int64_t tokens = MostTokens(prepared);
  ASSIGN_OR_RETURN(const Reservation reservation, quotas_->Acquire(tenant, tokens, QuotaNow()));
  const TenantLimits limits = quotas_->LimitsOf(tenant);
  int32_t& priority = prepared.request.priority;
  priority = std::max(priority, limits.max_priority);
  prepared.request.weight = limits.weight;
  ValidRequest request = prepared.request;
  // Echo without scores and without new tokens needs no worker.
  const bool local = request.score_only && request.sampling.num_prompt_logprobs < 0;
  auto session = std::make_shared<GenerationSession>(
      GenerationSession::Setup{.prepared = std::move(prepared),
                               .sink = std::move(sink),
                               .executor = std::move(executor),
                               .tokenizer = tokenizer_,
                               .frontend = frontend_,
                               .clock = options_.clock,
                               .observer = options_.observer,
                               .share = std::move(share),
                               .release = Releaser(reservation)});
  if (local) {
    session->OnEvent(RequestEnded{});
    return std::shared_ptr<Generation>(std::move(session));
  }
  absl::StatusOr<uint64_t> key = frontend_->Submit(std::move(request), session);
  if (!key.ok()) {
    session->Abandon();
    return key.status();
  }
  session->Submitted(*key);
  return std::shared_ptr<Generation>(std::move(session));
}

absl::StatusOr<std::vector<int32_t>> GenerationService::Tokenize(
    const Prompt& prompt, std::optional<bool> add_special_tokens,
    std::string_view prompt_param) const {
  return TokensOf(prompt, add_special_tokens, prompt_param, /*asked=*/nullptr);
}

absl::StatusOr<std::vector<int32_t>> GenerationService::TokensOf(
    const Prompt& prompt, std::optional<bool> add_special_tokens, std::string_view prompt_param,
    const GenerationRequest* asked) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  if (!has_tokenizer()) {
    return InvalidField(prompt_param, "This model has no tokenizer; only token ids are served.");
  }
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    RETURN_IF_ERROR(CheckText(*text, options_.limits, prompt_param));
    return Encode(*text, add_special_tokens.value_or(true), prompt_param, asked);
  }
  const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
  RETURN_IF_ERROR(CheckText(chat.messages_json, options_.limits, prompt_param));
  auto text = tokenizer_->ApplyChatTemplate(chat.messages_json,
                                            {.kwargs_json = chat.template_kwargs_json,
                                             .add_generation_prompt = chat.add_generation_prompt});
  if (!text.ok()) return AboutField(text.status(), prompt_param);
  // The template has written the special tokens itself.
  return Encode(*text, add_special_tokens.value_or(false), prompt_param, asked);
}

absl::StatusOr<std::vector<int32_t>> GenerationService::Encode(
    std::string_view text, bool special_tokens, std::string_view prompt_param,
    const GenerationRequest* asked) const {
  const int64_t most_bytes = tokenizer_->max_token_bytes();
  if (asked != nullptr && most_bytes > 0) {
    const int64_t least = (static_cast<int64_t>(text.size()) + most_bytes - 1) / most_bytes;
    RETURN_IF_ERROR(CheckLeastTokens(*asked, options_.limits, least));
  }
  auto ids = tokenizer_->Encode(text, special_tokens);
  return ids.ok() ? ids : AboutField(ids.status(), prompt_param);
}

absl::StatusOr<std::string> GenerationService::Detokenize(const std::vector<int32_t>& ids,
                                                          std::string_view param) const {
  if (!has_tokenizer()) {
    return InvalidField(param, "This model has no tokenizer; only token ids are served.");
  }
  // A few bytes of an id can be a hundred of text.
  if (ids.size() > static_cast<size_t>(options_.limits.max_model_len)) {
    return WithErrorCode(
        InvalidField(param, absl::StrFormat("%s has %d ids; this model's maximum context length "
                                            "is %d tokens.",
                                            param, ids.size(), options_.limits.max_model_len)),
        "context_length_exceeded");
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= options_.limits.vocab_size) {
      return InvalidField(param, absl::StrFormat("%s has the id %d; ids are between 0 and %d.",
                                                 param, id, options_.limits.vocab_size - 1));
    }
  }
  auto text = tokenizer_->Decode(ids, /*skip_special_tokens=*/false);
  return text.ok() ? text : AboutField(text.status(), param);
}

std::string GenerationService::TokenString(int32_t id) const {
  return DescribeToken(tokenizer_.get(), id, 0).text;
}

absl::Status GenerationService::CheckModel(std::string_view model) const {
  if (model.empty() || model == options_.model_name) return absl::OkStatus();
  absl::Status status = WithErrorParam(
      absl::NotFoundError(absl::StrFormat("The model `%s` does not exist; this server has `%s`.",
                                          ToValidUtf8(model.substr(0, 256)), options_.model_name)),
      "model");
  return WithErrorCode(std::move(status), "model_not_found");
}

std::string GenerationService::NewId() {
  const uint64_t high = NextRandom();
  return absl::StrFormat("%016x%016x", high, NextRandom());
}

uint64_t GenerationService::NextRandom() {
  absl::MutexLock lock(&mutex_);
  return random_.Next();
}

}  // namespace baton
