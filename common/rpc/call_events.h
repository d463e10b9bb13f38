#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/decode.pb.h"
#include "baton/v1/prefill.pb.h"
#include "common/base/protocol_version.h"
#include "common/node/message.h"
#include "common/rpc/call_end.h"
#include "common/rpc/sampling_wire.h"
#include "common/rpc/silence.h"

// The rules of one call from a router to a worker, at both of its ends, without the network: the
// events come whole, in their order, all of them, in range, no more than were asked for, and never
// with more than seconds between them.
namespace baton {

// How many events and outputs a call may bring.
int64_t MaxOutputs(const DecodeRequest& request);
int64_t MaxOutputs(const PrefillRequest& request);

// The worker's end. `request_seal`: crc32c of the request that opened the call; `protocol`: its
// router's.
class EventSealer {
 public:
  explicit EventSealer(uint32_t request_seal, int32_t protocol = kProtocolVersion)
      : request_seal_(request_seal), protocol_(protocol) {}

  // The last change to an event, in the order of sending. A sign of life is told how many events
  // were sent before it, and is not counted itself. False: it is not to be sent, what it says goes
  // with a later one.
  bool Seal(v1::DecodeEvent* event);
  bool Seal(v1::PrefillEvent* event);

 private:
  template <typename Event>
  void SealNext(Event* event);

  uint32_t request_seal_;
  int32_t protocol_;
  uint64_t num_sent_ = 0;
  v1::Scores scores_;  // Of a call of protocol 1, until its prompt is computed.
};

// The router's end. Take and EndOf are the reading thread's, the rest any thread's.
class CallEvents {
 public:
  // `request_seal` is absent where the events come in a session, which knows that they are whole.
  CallEvents(const WireLimits& limits, int64_t max_outputs, std::optional<uint32_t> request_seal)
      : limits_(limits), outputs_left_(max_outputs), request_seal_(request_seal) {}

  // What was read next: mail for the node, or nothing of a sign of life. After an error the call is
  // to be cancelled, and nothing more to be taken.
  absl::StatusOr<std::optional<WorkerEvent>> Take(const v1::DecodeEvent& event);
  absl::StatusOr<std::optional<WorkerEvent>> Take(const v1::PrefillEvent& event);
  // The stream has ended, or what came next could not be read at all.
  void OnUnread() { silence_.OnRead(false); }

  // One more kSweepInterval is over; true: the call is to be cancelled.
  bool Sweep();
  // The caller cancels it; it ends as UNAVAILABLE.
  void GiveUp() { is_given_up_ = true; }

  // What the call has come to. `is_broken`: that is no word of the worker's, and what else goes
  // over the connection is in doubt.
  struct End {
    absl::Status status;
    bool is_broken = false;
  };
  End EndOf(const PeerEnd& peer) const;

 private:
  template <typename Event>
  absl::StatusOr<std::optional<WorkerEvent>> TakeNext(const Event& event);
  template <typename Event>
  absl::Status CheckWhole(const Event& event) const;
  absl::Status CountOutputs(const WorkerEvent& event);

  const WireLimits limits_;
  int64_t outputs_left_;
  const std::optional<uint32_t> request_seal_;
  uint64_t num_events_ = 0;  // Without signs of life.
  absl::Status bad_;         // Why the last event was not taken.
  bool is_damaged_ = false;  // It, or one before it, did not arrive as it was sent.
  Silence silence_;
  std::atomic<bool> is_silent_ = false;
  std::atomic<bool> is_given_up_ = false;
};

}  // namespace baton
