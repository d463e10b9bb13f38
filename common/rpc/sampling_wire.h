#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "baton/v1/generation.pb.h"
#include "common/base/ids.h"
#include "common/base/sampling.h"
#include "common/transport/kv_transport.h"

// Both ways between the structs of common/base and their wire form. ToProto takes values of ours,
// which are valid. FromProto takes whatever a peer sent: the result is a valid struct or
// INVALID_ARGUMENT with the name of the field, its value and what is allowed; it never crashes and
// needs no more memory than the message.
namespace baton {

// What bounds a message besides its type; from the model, or from the worker's hello.
struct WireLimits {
  int32_t vocab_size = 0;     // Token ids are in [0, vocab_size).
  int32_t max_model_len = 0;  // Tokens of one sequence.
};

inline constexpr int kMaxStopTokenIds = 4096;
inline constexpr int32_t kMaxLogprobs = 1024;  // As many as a final frame of the K/V carries.

// "field = value: cure" as INVALID_ARGUMENT.
template <typename Value>
absl::Status WireError(absl::string_view field, const Value& value, absl::string_view cure) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": ", cure));
}

void ToProto(const SequenceId& from, v1::SequenceId* to);
void ToProto(const TicketId& from, v1::Ticket* to);
void ToProto(const SamplingParams& from, v1::SamplingParams* to);
void ToProto(const TokenOutput& from, v1::TokenOutput* to);
void ToProto(const PromptLogprob& from, v1::PromptLogprob* to);

absl::StatusOr<SequenceId> FromProto(const v1::SequenceId& from);
absl::StatusOr<TicketId> FromProto(const v1::Ticket& from);
absl::StatusOr<SamplingParams> FromProto(const v1::SamplingParams& from, const WireLimits& limits);
absl::StatusOr<TokenOutput> FromProto(const v1::TokenOutput& from, const WireLimits& limits);
absl::StatusOr<PromptLogprob> FromProto(const v1::PromptLogprob& from, const WireLimits& limits);

// OK when low <= value <= high.
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high);

// OK when every id is in [0, vocab_size).
template <typename Ids>
absl::Status CheckTokens(absl::string_view field, const Ids& ids, int32_t vocab_size) {
  int i = 0;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return WireError(absl::StrCat(field, "[", i, "]"), id,
                       absl::StrCat("token ids are 0 to ", vocab_size - 1));
    }
    ++i;
  }
  return absl::OkStatus();
}

}  // namespace baton
