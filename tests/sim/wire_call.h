#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/call_end.h"
#include "common/rpc/call_events.h"
#include "common/rpc/gate.h"
#include "tests/sim/any_mail.h"
#include "tests/sim/fake_model.h"

namespace baton::sim {

// Of the simulated model.
inline constexpr WireLimits kSimLimits{.vocab_size = kVocab, .max_model_len = kMaxLength};

// The messages of the control plane as the bytes that the shipped edges exchange: converted, sealed
// and serialised by the code that ships, and taken by it.
enum class WireKind : uint8_t {
  kDecode,
  kPrefill,
  kRebind,
  kSend,
  kDecodeEvent,
  kPrefillEvent,
  kHello,
  kStatus
};

// As the shipped processes: what the library cannot read is no news.
void SilenceLibraryLogs();

// Would the shipped code read the same of both? A changed bit may write the same value.
bool ReadsTheSame(WireKind kind, const std::string& bytes, const std::string& sent);

// `worker`: the process that is meant.
std::string Encode(const RebindRequest& request, Incarnation worker);
std::string Encode(const SendRequest& request, Incarnation worker);
std::string Encode(const HelloInfo& hello);
std::string Encode(const WorkerStatus& status);

// The worker's edge: mail to its node, of `call` if it opens one; or what it answers instead.
std::optional<AnyWorkerMail> TakeRequest(const RequestGate& gate, WireKind kind, CallId call,
                                   const std::string& bytes, PeerEnd* refusal);
// The router's. UNKNOWN: the library cannot read it, and the edge sees nothing of it.
absl::StatusOr<HelloInfo> TakeHello(const std::string& bytes);
absl::StatusOr<WorkerStatus> TakeStatus(const std::string& bytes, Incarnation worker);

// One call, both ends of it.
class WireCall {
 public:
  explicit WireCall(const DecodeRequest& request);
  explicit WireCall(const PrefillRequest& request);

  // The sealed request that opens it.
  const std::string& opening() const { return opening_; }
  WireKind opening_kind() const { return is_decode_ ? WireKind::kDecode : WireKind::kPrefill; }
  WireKind event_kind() const {
    return is_decode_ ? WireKind::kDecodeEvent : WireKind::kPrefillEvent;
  }
  Incarnation worker() const { return worker_; }

  // The worker's end.
  std::string Send(const WorkerEvent& event);
  std::string SendAlive();

  // The router's end. Nothing of a sign of life; UNKNOWN: nothing more can be read.
  absl::StatusOr<std::optional<WorkerEvent>> Receive(const std::string& bytes);
  CallEvents& events() { return events_; }

 private:
  template <typename Proto, typename Request>
  WireCall(const Request& request, Proto proto);
  template <typename Proto>
  absl::StatusOr<std::optional<WorkerEvent>> ReceiveAs(const std::string& bytes);

  bool is_decode_;
  Incarnation worker_;
  std::string opening_;
  EventSealer sealer_;
  CallEvents events_;
};

}  // namespace baton::sim
