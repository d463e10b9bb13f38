// Each message between router and worker: its seal, its conversion, and back.
#include <utility>

#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/message_mutator.h"

namespace baton {
namespace {

constexpr WireLimits kLimits{.vocab_size = 1000, .max_model_len = 512};

void CheckAccepted(const SamplingParams& s) {
  BATON_CHECK(s.max_tokens >= 1 && s.top_p > 0 && s.top_p <= 1 && s.temperature >= 0);
  for (const LogitBias& b : s.logit_bias) BATON_CHECK(b.token >= 0 && b.token < 1000);
  for (const int32_t id : s.stop_token_ids) BATON_CHECK(id >= 0 && id < 1000);
}

template <typename Request>
void CheckCall(const Request& r) {
  BATON_CHECK(r.attempt >= 1 && r.worker != 0 && r.tenant.size() <= kMaxLabelBytes);
  BATON_CHECK(!r.tokens.empty() && r.tokens.size() <= 512);
  BATON_CHECK(r.prompt_length >= 1 && r.prompt_length <= static_cast<int>(r.tokens.size()));
  for (const int32_t id : r.tokens) BATON_CHECK(id >= 0 && id < 1000);
  BATON_CHECK(r.timeout > Duration::zero() && r.age >= Duration::zero());
  CheckAccepted(r.sampling);
}

void CheckAccepted(const DecodeRequest& r) { CheckCall(r); }
void CheckAccepted(const PrefillRequest& r) {
  CheckCall(r);
  if (!r.handoff.has_value()) return;
  BATON_CHECK(!r.score_only && !r.handoff->ticket.empty() && r.handoff->decode != 0);
  BATON_CHECK(r.handoff->first_token >= 0 &&
              r.handoff->first_token <= static_cast<int>(r.tokens.size()));
}
void CheckAccepted(const WorkerEvent& event) {
  if (const auto* tokens = std::get_if<TokensEvent>(&event)) {
    for (const TokenOutput& one : tokens->outputs) {
      BATON_CHECK(one.token >= 0 && one.token < 1000 && one.position >= 1 && one.position <= 512);
    }
  }
  if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
    BATON_CHECK(!scores->logprobs.empty());
    for (const PromptLogprob& one : scores->logprobs) {
      BATON_CHECK(one.token >= 0 && one.token < 1000 && one.position >= 1 && one.position <= 512);
    }
  }
}
void CheckAccepted(const WorkerStatus& status) { BATON_CHECK(status.blocks.total() >= 0); }
template <typename Other>
void CheckAccepted(const Other&) {}

template <typename Proto, typename Value>
void Print(const Value& value, Proto* to) {
  ToProto(value, to);
}
template <typename Proto>
void Print(const WorkerEvent& event, Proto* to) {
  std::visit(
      [to](const auto& one) {
        if constexpr (requires { ToProto(one, to); }) {
          ToProto(one, to);
        } else {
          BATON_CHECK(false);  // An event of the other kind of worker.
        }
      },
      event);
}

// `limits` is empty or the limits.
template <typename Proto, typename... Limits>
void RoundTrip(std::string_view bytes, const Limits&... limits) {
  Proto message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  if constexpr (requires { message.crc32c(); }) {
    Proto sealed = message;
    Seal(&sealed, 7);
    BATON_CHECK(CheckSeal(sealed, 7).ok() && !CheckSeal(sealed, 8).ok());
  }
  const auto value = FromProto(message, limits...);
  if (!value.ok()) return CheckRefusal(value.status());
  CheckAccepted(*value);
  Proto printed;
  Print(*value, &printed);
  const auto again = FromProto(printed, limits...);
  BATON_CHECK(again.ok());
  Proto twice;
  Print(*again, &twice);
  BATON_CHECK(printed.SerializeAsString() == twice.SerializeAsString());
}

constexpr int kKinds = 9;

void Run(FuzzInput input) {
  const int kind = input.Byte() % kKinds;
  const std::string_view bytes = input.Rest();
  switch (kind) {
    case 0:
      return RoundTrip<v1::DecodeRequest>(bytes, kLimits);
    case 1:
      return RoundTrip<v1::PrefillRequest>(bytes, kLimits);
    case 2:
      return RoundTrip<v1::DecodeEvent>(bytes, kLimits);
    case 3:
      return RoundTrip<v1::PrefillEvent>(bytes, kLimits);
    case 4:
      return RoundTrip<v1::RebindRequest>(bytes);
    case 5:
      return RoundTrip<v1::SendRequest>(bytes, kLimits);
    case 6:
      return RoundTrip<v1::AuditResponse>(bytes);
    case 7:
      return RoundTrip<v1::HelloResponse>(bytes);
    default:
      return RoundTrip<v1::WorkerStatus>(bytes);
  }
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using namespace baton;
  constexpr decltype(&MutateAs<v1::DecodeRequest>) kMutators[] = {
      MutateAs<v1::DecodeRequest>, MutateAs<v1::PrefillRequest>, MutateAs<v1::DecodeEvent>,
      MutateAs<v1::PrefillEvent>,  MutateAs<v1::RebindRequest>,  MutateAs<v1::SendRequest>,
      MutateAs<v1::AuditResponse>, MutateAs<v1::HelloResponse>,  MutateAs<v1::WorkerStatus>};
  static_assert(std::size(kMutators) == kKinds);
  const int kind = size == 0 ? 0 : data[0] % kKinds;
  return kMutators[kind](data, size, max_size, 1, seed);
}
