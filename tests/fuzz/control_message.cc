// Each message between router and worker: its seal, its conversion, and back; and those of a
// session, as both of its ends take them.
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/rpc/call_events.h"
#include "common/rpc/gate.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/session.h"
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

// ---- Messages of a session ---------------------------------------------------------------------

void TakeAsked(const v1::CallAsked& asked) {
  const RequestGate gate(7, kLimits);
  const auto check = [](const auto& taken) {
    if (!taken.ok()) return CheckRefusal(taken.status());
    CheckAccepted(*taken);
  };
  if (asked.has_decode()) return check(gate.Take(asked.decode(), Came::kInSession));
  if (asked.has_prefill()) return check(gate.Take(asked.prefill(), Came::kInSession));
  if (asked.has_rebind()) return check(gate.Take(asked.rebind(), Came::kInSession));
  if (asked.has_send()) return check(gate.Take(asked.send(), Came::kInSession));
}

// As SessionClient takes them: what comes is in range, and of a call no more than was asked for.
class ToldCalls {
 public:
  void Take(const v1::CallTold& told) {
    CallEvents& events = *EventsOf(told.call());
    const auto event = told.has_decode() ? events.Take(told.decode()) : events.Take(told.prefill());
    if (!event.ok()) {
      const CallEvents::End end = events.EndOf({});
      BATON_CHECK(!end.status.ok());
      calls_.erase(told.call());
    } else if (event->has_value()) {
      CheckAccepted(**event);
      BATON_CHECK(++num_taken_[told.call()] <= kMostOutputs);
    }
  }

 private:
  static constexpr int64_t kMostOutputs = 20;
  std::unique_ptr<CallEvents>& EventsOf(uint64_t call) {
    auto& events = calls_[call];
    if (events == nullptr) {
      events = std::make_unique<CallEvents>(kLimits, kMostOutputs, std::nullopt);
      num_taken_[call] = 0;
    }
    return events;
  }
  std::map<uint64_t, std::unique_ptr<CallEvents>> calls_;
  std::map<uint64_t, int64_t> num_taken_;
};

// The bytes are one message's, sealed as they came; a number that is not the next one, a repetition
// and other bytes behind the same seal are not taken.
template <typename Message, typename Use>
void TakeFrame(std::string_view bytes, const Use& use) {
  constexpr uint32_t kKey = 77;
  v1::SessionFrame frame;
  frame.set_message(std::string(bytes));
  frame.set_crc32c(ChecksumOf(frame.message(), kKey));
  SessionInput input;
  input.set_key(kKey);
  v1::SessionFrame damaged = frame;
  damaged.mutable_message()->push_back('a');
  Message message;
  BATON_CHECK(absl::IsDataLoss(input.Take(damaged, &message)));
  const absl::Status taken = input.Take(frame, &message);
  if (!taken.ok()) return CheckRefusal(taken, {absl::StatusCode::kDataLoss});
  BATON_CHECK(message.number() == 1);
  use(message);
  BATON_CHECK(absl::IsDataLoss(input.Take(frame, &message)));
}

void TakeToWorker(std::string_view bytes) {
  TakeFrame<v1::ToWorker>(bytes, [](const v1::ToWorker& message) {
    for (const v1::CallAsked& asked : message.calls()) TakeAsked(asked);
  });
}

void TakeToRouter(std::string_view bytes) {
  TakeFrame<v1::ToRouter>(bytes, [](const v1::ToRouter& message) {
    ToldCalls calls;
    for (const v1::CallTold& told : message.calls()) {
      if (!told.has_end()) calls.Take(told);
    }
  });
}

constexpr int kKinds = 11;

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
    case 9:
      return TakeToWorker(bytes);
    case 10:
      return TakeToRouter(bytes);
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
      MutateAs<v1::AuditResponse>, MutateAs<v1::HelloResponse>,  MutateAs<v1::WorkerStatus>,
      MutateAs<v1::ToWorker>,      MutateAs<v1::ToRouter>};
  static_assert(std::size(kMutators) == kKinds);
  const int kind = size == 0 ? 0 : data[0] % kKinds;
  return kMutators[kind](data, size, max_size, 1, seed);
}
