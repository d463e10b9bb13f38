#include "common/rpc/message_wire.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/wire_fields.h"

namespace baton {
namespace {

// The fields that DecodeRequest and PrefillRequest have in common.
template <typename Proto, typename Request>
absl::Status ReadRequest(const Proto& from, const WireLimits& limits, Request* to) {
  ASSIGN_OR_RETURN(to->sequence, FromProto(from.sequence()));
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  to->attempt = from.attempt();
  RETURN_IF_ERROR(CheckIncarnation("expected_incarnation", from.expected_incarnation()));
  to->worker = from.expected_incarnation();
  RETURN_IF_ERROR(CheckRange("tokens.size", from.tokens_size(), 1, limits.max_model_len));
  RETURN_IF_ERROR(CheckTokens("tokens", from.tokens(), limits.vocab_size));
  to->tokens.assign(from.tokens().begin(), from.tokens().end());
  RETURN_IF_ERROR(CheckRange("prompt_length", from.prompt_length(), 1, from.tokens_size()));
  to->prompt_length = from.prompt_length();
  ASSIGN_OR_RETURN(to->sampling, FromProto(from.sampling(), limits));
  RETURN_IF_ERROR(CheckLabel("tenant", from.tenant()));
  to->tenant = from.tenant();
  RETURN_IF_ERROR(CheckRange("age_us", from.age_us(), 0, kMaxWaitUs));
  RETURN_IF_ERROR(CheckRange("timeout_us", from.timeout_us(), 1, kMaxWaitUs));
  to->age = std::chrono::microseconds(from.age_us());
  to->timeout = std::chrono::microseconds(from.timeout_us());
  return absl::OkStatus();
}

template <typename Proto, typename Request>
void WriteRequest(const Request& from, Proto* to) {
  ToProto(from.sequence, to->mutable_sequence());
  to->set_attempt(from.attempt);
  to->set_expected_incarnation(from.worker);
  to->mutable_tokens()->Assign(from.tokens.begin(), from.tokens.end());
  to->set_prompt_length(from.prompt_length);
  ToProto(from.sampling, to->mutable_sampling());
  to->set_tenant(from.tenant);
  to->set_age_us(std::clamp<int64_t>(ToMicros(from.age), 0, kMaxWaitUs));
  to->set_timeout_us(std::clamp<int64_t>(ToMicros(from.timeout), 1, kMaxWaitUs));
}

absl::StatusOr<HandoffTarget> ReadHandoff(const v1::HandoffTarget& from, int32_t num_tokens) {
  HandoffTarget target;
  ASSIGN_OR_RETURN(target.ticket, FromProto(from.ticket()));
  const bool is_old = from.ranks().empty() && !from.endpoint().empty();  // Before protocol 3.
  ASSIGN_OR_RETURN(target.ranks, is_old ? ReadEndpoint("handoff.endpoint", from.endpoint())
                                        : ReadRanks("handoff.ranks", from.ranks()));
  ASSIGN_OR_RETURN(target.pair_key, ReadPairKey(from.pair_key()));
  RETURN_IF_ERROR(CheckIncarnation("handoff.decode_incarnation", from.decode_incarnation()));
  target.decode = from.decode_incarnation();
  RETURN_IF_ERROR(CheckRange("handoff.first_token", from.first_token(), 0, num_tokens - 1));
  target.first_token = from.first_token();
  return target;
}

void WriteHandoff(const HandoffTarget& from, v1::HandoffTarget* to) {
  ToProto(from.ticket, to->mutable_ticket());
  WriteRanks(from.ranks, to->mutable_ranks());
  to->set_pair_key(WritePairKey(from.pair_key));
  to->set_decode_incarnation(from.decode);
  to->set_first_token(from.first_token);
}

// Strings on the wire are UTF-8: a character is not cut.
std::string FirstBytes(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<uint8_t>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

void WriteFailure(const HandoffFailedEvent& from, v1::HandoffFailed* to) {
  to->set_attempt(from.attempt);
  to->set_reason(FirstBytes(from.reason, kMaxReasonBytes));
}

absl::StatusOr<HandoffFailedEvent> ReadFailure(const v1::HandoffFailed& from) {
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  RETURN_IF_ERROR(CheckRange("reason.size", from.reason().size(), 0, kMaxReasonBytes));
  return HandoffFailedEvent{.attempt = from.attempt(), .reason = from.reason()};
}

absl::StatusOr<ReservedEvent> ReadReserved(const v1::Reserved& from, const WireLimits& limits) {
  ReservedEvent event;
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  event.attempt = from.attempt();
  ASSIGN_OR_RETURN(event.ticket, FromProto(from.ticket()));
  ASSIGN_OR_RETURN(event.ranks, ReadRanks("ranks", from.ranks()));
  ASSIGN_OR_RETURN(event.pair_key, ReadPairKey(from.pair_key()));
  RETURN_IF_ERROR(CheckIncarnation("decode_incarnation", from.decode_incarnation()));
  event.decode = from.decode_incarnation();
  RETURN_IF_ERROR(CheckRange("cached_tokens", from.cached_tokens(), 0, limits.max_model_len));
  event.cached_tokens = from.cached_tokens();
  return event;
}

absl::StatusOr<TokensEvent> ReadTokens(const v1::Tokens& from, const WireLimits& limits) {
  TokensEvent event;
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  event.attempt = from.attempt();
  RETURN_IF_ERROR(CheckRange("outputs.size", from.outputs_size(), 0, limits.max_model_len));
  event.outputs.reserve(from.outputs_size());
  for (const v1::TokenOutput& one : from.outputs()) {
    ASSIGN_OR_RETURN(TokenOutput output, FromProto(one, limits));
    if (!event.outputs.empty() && output.position != event.outputs.back().position + 1) {
      return WireError("outputs.position", output.position, "positions must ascend by one");
    }
    event.outputs.push_back(std::move(output));
  }
  RETURN_IF_ERROR(CheckRange("cached_tokens", from.cached_tokens(), 0, limits.max_model_len));
  event.cached_tokens = from.cached_tokens();
  return event;
}

absl::StatusOr<ScoresEvent> ReadScores(const v1::Scores& from, const WireLimits& limits) {
  ScoresEvent event;
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  event.attempt = from.attempt();
  RETURN_IF_ERROR(
      CheckRange("prompt_logprobs.size", from.prompt_logprobs_size(), 1, limits.max_model_len));
  int64_t num_scores = 0;
  event.logprobs.reserve(from.prompt_logprobs_size());
  for (const v1::PromptLogprob& one : from.prompt_logprobs()) {
    ASSIGN_OR_RETURN(PromptLogprob logprob, FromProto(one, limits));
    if (!event.logprobs.empty() && logprob.position != event.logprobs.back().position + 1) {
      return WireError("prompt_logprobs.position", logprob.position,
                       "positions must ascend by one");
    }
    num_scores += NumScores(logprob);
    event.logprobs.push_back(std::move(logprob));
  }
  RETURN_IF_ERROR(CheckRange("prompt_logprobs with top", num_scores, 1, kMaxPieceScores));
  return event;
}

void WriteScores(const ScoresEvent& from, v1::Scores* to) {
  to->set_attempt(from.attempt);
  for (const PromptLogprob& one : from.logprobs) ToProto(one, to->add_prompt_logprobs());
}

absl::StatusOr<PrefilledEvent> ReadPrefilled(const v1::Prefilled& from, const WireLimits& limits) {
  PrefilledEvent event;
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  event.attempt = from.attempt();
  if (from.has_first()) {
    ASSIGN_OR_RETURN(event.first, FromProto(from.first(), limits));
  }
  RETURN_IF_ERROR(CheckRange("cached_tokens", from.cached_tokens(), 0, limits.max_model_len));
  event.cached_tokens = from.cached_tokens();
  return event;
}

}  // namespace

void ToProto(const DecodeRequest& from, v1::DecodeRequest* to) {
  WriteRequest(from, to);
  to->set_prefill_incarnation(from.prefill);
  to->set_compute_prompt(from.compute_prompt);
  to->set_score_only(from.score_only);
}

absl::StatusOr<DecodeRequest> FromProto(const v1::DecodeRequest& from, const WireLimits& limits) {
  DecodeRequest request;
  RETURN_IF_ERROR(ReadRequest(from, limits, &request));
  request.prefill = from.prefill_incarnation();
  request.compute_prompt = from.compute_prompt();
  if (request.compute_prompt && request.prefill != 0) {
    return absl::InvalidArgumentError(
        "compute_prompt: prefill_incarnation names a worker that brings the prompt; must be 0");
  }
  request.score_only = from.score_only();
  const bool has_answer = from.prompt_length() < from.tokens_size();
  if (request.score_only && (!request.compute_prompt || has_answer)) {
    return absl::InvalidArgumentError(
        "score_only: needs compute_prompt, and tokens that are the prompt alone");
  }
  return request;
}

void ToProto(const PrefillRequest& from, v1::PrefillRequest* to) {
  WriteRequest(from, to);
  to->set_score_only(from.score_only);
  if (!from.handoff.has_value()) return;
  WriteHandoff(*from.handoff, to->mutable_handoff());
}

absl::StatusOr<PrefillRequest> FromProto(const v1::PrefillRequest& from, const WireLimits& limits) {
  PrefillRequest request;
  RETURN_IF_ERROR(ReadRequest(from, limits, &request));
  request.score_only = from.score_only();
  if (from.has_handoff()) {
    ASSIGN_OR_RETURN(request.handoff, ReadHandoff(from.handoff(), from.tokens_size()));
  }
  if (request.score_only && request.handoff.has_value()) {
    return absl::InvalidArgumentError("handoff: a score_only request has none");
  }
  return request;
}

void ToProto(const ReservedEvent& from, v1::DecodeEvent* to) {
  v1::Reserved* reserved = to->mutable_reserved();
  reserved->set_attempt(from.attempt);
  ToProto(from.ticket, reserved->mutable_ticket());
  WriteRanks(from.ranks, reserved->mutable_ranks());
  reserved->set_pair_key(WritePairKey(from.pair_key));
  reserved->set_decode_incarnation(from.decode);
  reserved->set_cached_tokens(from.cached_tokens);
}

void ToProto(const TokensEvent& from, v1::DecodeEvent* to) {
  v1::Tokens* tokens = to->mutable_tokens();
  tokens->set_attempt(from.attempt);
  for (const TokenOutput& output : from.outputs) ToProto(output, tokens->add_outputs());
  tokens->set_cached_tokens(from.cached_tokens);
}

absl::StatusOr<WorkerEvent> FromProto(const v1::DecodeEvent& from, const WireLimits& limits) {
  switch (from.event_case()) {
    case v1::DecodeEvent::kReserved: {
      ASSIGN_OR_RETURN(ReservedEvent event, ReadReserved(from.reserved(), limits));
      return event;
    }
    case v1::DecodeEvent::kTokens: {
      ASSIGN_OR_RETURN(TokensEvent event, ReadTokens(from.tokens(), limits));
      return event;
    }
    case v1::DecodeEvent::kHandoffFailed: {
      ASSIGN_OR_RETURN(HandoffFailedEvent event, ReadFailure(from.handoff_failed()));
      return event;
    }
    case v1::DecodeEvent::kScores: {
      ASSIGN_OR_RETURN(ScoresEvent event, ReadScores(from.scores(), limits));
      return event;
    }
    case v1::DecodeEvent::kAlive:  // No mail for a node: CallEvents takes it.
    case v1::DecodeEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "event is not set: must be reserved, tokens, scores or handoff_failed");
}

void ToProto(const PrefilledEvent& from, v1::PrefillEvent* to) {
  v1::Prefilled* prefilled = to->mutable_prefilled();
  prefilled->set_attempt(from.attempt);
  if (from.first.has_value()) ToProto(*from.first, prefilled->mutable_first());
  prefilled->set_cached_tokens(from.cached_tokens);
}

void ToProto(const ScoresEvent& from, v1::PrefillEvent* to) {
  WriteScores(from, to->mutable_scores());
}

void ToProto(const ScoresEvent& from, v1::DecodeEvent* to) {
  WriteScores(from, to->mutable_scores());
}

absl::StatusOr<WorkerEvent> FromProto(const v1::PrefillEvent& from, const WireLimits& limits) {
  if (from.has_scores()) {
    ASSIGN_OR_RETURN(ScoresEvent event, ReadScores(from.scores(), limits));
    return event;
  }
  if (from.has_handoff_failed()) {
    ASSIGN_OR_RETURN(HandoffFailedEvent event, ReadFailure(from.handoff_failed()));
    return event;
  }
  if (!from.has_prefilled()) {
    return absl::InvalidArgumentError(
        "event is not set: must be scores, prefilled or handoff_failed");
  }
  ASSIGN_OR_RETURN(PrefilledEvent event, ReadPrefilled(from.prefilled(), limits));
  return event;
}

void ToProto(const HandoffFailedEvent& from, v1::DecodeEvent* to) {
  WriteFailure(from, to->mutable_handoff_failed());
}

void ToProto(const HandoffFailedEvent& from, v1::PrefillEvent* to) {
  WriteFailure(from, to->mutable_handoff_failed());
}

void ToProto(const RebindRequest& from, v1::RebindRequest* to) {
  ToProto(from.sequence, to->mutable_sequence());
  to->set_attempt(from.attempt);
  to->set_prefill_incarnation(from.prefill);
}

absl::StatusOr<RebindRequest> FromProto(const v1::RebindRequest& from) {
  RebindRequest request;
  ASSIGN_OR_RETURN(request.sequence, FromProto(from.sequence()));
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  request.attempt = from.attempt();
  request.prefill = from.prefill_incarnation();
  return request;
}

void ToProto(const SendRequest& from, v1::SendRequest* to) {
  ToProto(from.sequence, to->mutable_sequence());
  to->set_attempt(from.attempt);
  WriteHandoff(from.handoff, to->mutable_handoff());
}

absl::StatusOr<SendRequest> FromProto(const v1::SendRequest& from, const WireLimits& limits) {
  SendRequest request;
  ASSIGN_OR_RETURN(request.sequence, FromProto(from.sequence()));
  if (from.attempt() == 0) return WireError("attempt", 0, "attempts are counted from 1");
  request.attempt = from.attempt();
  ASSIGN_OR_RETURN(request.handoff, ReadHandoff(from.handoff(), limits.max_model_len));
  return request;
}

}  // namespace baton
