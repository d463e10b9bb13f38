#include "common/rpc/sampling_wire.h"

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/status.h"

namespace baton {
namespace {

absl::Status CheckFinite(absl::string_view field, float value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return WireError(field, value, "must be a finite number");
}

// A log probability may be minus infinity (a masked token) but never NaN or positive infinity.
absl::Status CheckLogprob(absl::string_view field, float value) {
  if (!std::isnan(value) && value != std::numeric_limits<float>::infinity()) {
    return absl::OkStatus();
  }
  return WireError(field, value, "must be a number below infinity");
}

absl::Status CheckFractions(const v1::SamplingParams& from) {
  RETURN_IF_ERROR(CheckFinite("sampling.temperature", from.temperature()));
  if (from.temperature() < 0) {
    return WireError("sampling.temperature", from.temperature(), "must be at least 0");
  }
  if (!(from.top_p() > 0 && from.top_p() <= 1)) {
    return WireError("sampling.top_p", from.top_p(), "must be above 0 and at most 1");
  }
  if (!(from.min_p() >= 0 && from.min_p() <= 1)) {
    return WireError("sampling.min_p", from.min_p(), "must be from 0 to 1");
  }
  RETURN_IF_ERROR(CheckFinite("sampling.repetition_penalty", from.repetition_penalty()));
  if (from.repetition_penalty() <= 0) {
    return WireError("sampling.repetition_penalty", from.repetition_penalty(), "must be above 0");
  }
  RETURN_IF_ERROR(CheckFinite("sampling.frequency_penalty", from.frequency_penalty()));
  return CheckFinite("sampling.presence_penalty", from.presence_penalty());
}

absl::Status CheckCounts(const v1::SamplingParams& from, const WireLimits& limits) {
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  const int32_t max_logprobs = std::min(kMaxLogprobs, limits.vocab_size);
  RETURN_IF_ERROR(CheckRange("sampling.top_k", from.top_k(), 0, kMaxInt));
  RETURN_IF_ERROR(CheckRange("sampling.max_tokens", from.max_tokens(), 1, limits.max_model_len));
  RETURN_IF_ERROR(CheckRange("sampling.min_tokens", from.min_tokens(), 0, limits.max_model_len));
  RETURN_IF_ERROR(CheckRange("sampling.num_logprobs", from.num_logprobs(), -1, max_logprobs));
  return CheckRange("sampling.num_prompt_logprobs", from.num_prompt_logprobs(), -1, max_logprobs);
}

absl::StatusOr<std::vector<LogitBias>> ReadLogitBias(const v1::SamplingParams& from,
                                                     const WireLimits& limits) {
  std::vector<LogitBias> biases;
  biases.reserve(from.logit_bias_size());
  for (const v1::LogitBias& bias : from.logit_bias()) {
    RETURN_IF_ERROR(
        CheckRange("sampling.logit_bias.token", bias.token(), 0, limits.vocab_size - 1));
    RETURN_IF_ERROR(CheckFinite("sampling.logit_bias.bias", bias.bias()));
    if (!biases.empty() && bias.token() <= biases.back().token) {
      return WireError("sampling.logit_bias.token", bias.token(), "tokens must ascend, each once");
    }
    biases.push_back({.token = bias.token(), .bias = bias.bias()});
  }
  return biases;
}

template <typename List>
absl::StatusOr<std::vector<TokenLogprob>> ReadTop(const List& list, const WireLimits& limits) {
  std::vector<TokenLogprob> top;
  RETURN_IF_ERROR(CheckRange("top.size", list.size(), 0, kMaxLogprobs + 1));
  top.reserve(list.size());
  for (const v1::TokenLogprob& one : list) {
    RETURN_IF_ERROR(CheckRange("top.token", one.token(), 0, limits.vocab_size - 1));
    RETURN_IF_ERROR(CheckLogprob("top.logprob", one.logprob()));
    top.push_back({.token = one.token(), .logprob = one.logprob()});
  }
  return top;
}

template <typename List>
void WriteTop(const std::vector<TokenLogprob>& top, List* list) {
  for (const TokenLogprob& one : top) {
    v1::TokenLogprob* to = list->Add();
    to->set_token(one.token);
    to->set_logprob(one.logprob);
  }
}

}  // namespace

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return WireError(field, value, absl::StrCat("must be from ", low, " to ", high));
}

void ToProto(const SequenceId& from, v1::SequenceId* to) {
  to->set_router(from.router);
  to->set_counter(from.counter);
}

absl::StatusOr<SequenceId> FromProto(const v1::SequenceId& from) {
  if (from.router() == 0) {
    return WireError("sequence.router", 0, "a router's incarnation is never 0");
  }
  return SequenceId{.router = from.router(), .counter = from.counter()};
}

void ToProto(const TicketId& from, v1::Ticket* to) {
  to->set_hi(from.hi);
  to->set_lo(from.lo);
}

absl::StatusOr<TicketId> FromProto(const v1::Ticket& from) {
  const TicketId ticket{.hi = from.hi(), .lo = from.lo()};
  if (ticket.empty()) return WireError("ticket", 0, "a ticket is never all zero");
  if ((ticket.lo & TicketId::kRankBits) != 0) {
    return WireError("ticket.lo", ticket.lo, "the low three bits must be 0");
  }
  return ticket;
}

void ToProto(const SamplingParams& from, v1::SamplingParams* to) {
  to->set_temperature(from.temperature);
  to->set_top_k(from.top_k);
  to->set_top_p(from.top_p);
  to->set_min_p(from.min_p);
  to->set_repetition_penalty(from.repetition_penalty);
  to->set_frequency_penalty(from.frequency_penalty);
  to->set_presence_penalty(from.presence_penalty);
  for (const LogitBias& bias : from.logit_bias) {
    v1::LogitBias* one = to->add_logit_bias();
    one->set_token(bias.token);
    one->set_bias(bias.bias);
  }
  to->set_seed(from.seed);
  to->set_choice(from.choice);
  to->set_max_tokens(from.max_tokens);
  to->set_min_tokens(from.min_tokens);
  to->set_ignore_eos(from.ignore_eos);
  to->mutable_stop_token_ids()->Assign(from.stop_token_ids.begin(), from.stop_token_ids.end());
  to->set_num_logprobs(from.num_logprobs);
  to->set_num_prompt_logprobs(from.num_prompt_logprobs);
  to->set_logits_digest(from.logits_digest);
}

absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& from, const WireLimits& limits) {
  RETURN_IF_ERROR(CheckFractions(from));
  RETURN_IF_ERROR(CheckCounts(from, limits));
  RETURN_IF_ERROR(
      CheckRange("sampling.stop_token_ids.size", from.stop_token_ids_size(), 0, kMaxStopTokenIds));
  RETURN_IF_ERROR(CheckTokens("sampling.stop_token_ids", from.stop_token_ids(), limits.vocab_size));
  SamplingParams params;
  ASSIGN_OR_RETURN(params.logit_bias, ReadLogitBias(from, limits));
  params.temperature = from.temperature();
  params.top_k = from.top_k();
  params.top_p = from.top_p();
  params.min_p = from.min_p();
  params.repetition_penalty = from.repetition_penalty();
  params.frequency_penalty = from.frequency_penalty();
  params.presence_penalty = from.presence_penalty();
  params.seed = from.seed();
  params.choice = from.choice();
  params.max_tokens = from.max_tokens();
  params.min_tokens = from.min_tokens();
  params.ignore_eos = from.ignore_eos();
  params.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
  params.num_logprobs = from.num_logprobs();
  params.num_prompt_logprobs = from.num_prompt_logprobs();
  params.logits_digest = from.logits_digest();
  return params;
}

void ToProto(const TokenOutput& from, v1::TokenOutput* to) {
  to->set_position(from.position);
  to->set_token(from.token);
  to->set_logprob(from.logprob);
  WriteTop(from.top, to->mutable_top());
  to->set_logits_digest(from.logits_digest);
  to->set_finish(static_cast<v1::FinishReason>(from.finish));
}

absl::StatusOr<TokenOutput> FromProto(const v1::TokenOutput& from, const WireLimits& limits) {
  RETURN_IF_ERROR(CheckRange("output.position", from.position(), 1, limits.max_model_len));
  RETURN_IF_ERROR(CheckRange("output.token", from.token(), 0, limits.vocab_size - 1));
  RETURN_IF_ERROR(CheckLogprob("output.logprob", from.logprob()));
  RETURN_IF_ERROR(
      CheckRange("output.finish", from.finish(), v1::FINISH_REASON_NONE, v1::FINISH_REASON_LENGTH));
  TokenOutput output{.position = from.position(),
                     .token = from.token(),
                     .logprob = from.logprob(),
                     .logits_digest = from.logits_digest(),
                     .finish = static_cast<FinishReason>(from.finish())};
  ASSIGN_OR_RETURN(output.top, ReadTop(from.top(), limits));
  return output;
}

void ToProto(const PromptLogprob& from, v1::PromptLogprob* to) {
  to->set_position(from.position);
  to->set_token(from.token);
  to->set_logprob(from.logprob);
  to->set_rank(from.rank);
  WriteTop(from.top, to->mutable_top());
}

absl::StatusOr<PromptLogprob> FromProto(const v1::PromptLogprob& from, const WireLimits& limits) {
  RETURN_IF_ERROR(CheckRange("prompt_logprob.position", from.position(), 1, limits.max_model_len));
  RETURN_IF_ERROR(CheckRange("prompt_logprob.token", from.token(), 0, limits.vocab_size - 1));
  RETURN_IF_ERROR(CheckLogprob("prompt_logprob.logprob", from.logprob()));
  RETURN_IF_ERROR(CheckRange("prompt_logprob.rank", from.rank(), 1, limits.vocab_size));
  PromptLogprob logprob{.position = from.position(),
                        .token = from.token(),
                        .logprob = from.logprob(),
                        .rank = from.rank()};
  ASSIGN_OR_RETURN(logprob.top, ReadTop(from.top(), limits));
  return logprob;
}

}  // namespace baton
