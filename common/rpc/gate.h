#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/cluster.pb.h"
#include "baton/v1/decode.pb.h"
#include "baton/v1/prefill.pb.h"
#include "common/node/message.h"
#include "common/rpc/sampling_wire.h"

// What each end of the control plane takes of the other's sealed messages, without the network:
// what is whole, meant for this process and in range. Events are call_events.h's.
namespace baton {

// Requests that came in a session are known to be whole and meant for this process.
enum class Came : uint8_t { kAlone, kInSession };

// A worker's: DATA_LOSS, FAILED_PRECONDITION or INVALID_ARGUMENT say which of the three it is not.
class RequestGate {
 public:
  RequestGate(Incarnation incarnation, const WireLimits& limits)
      : incarnation_(incarnation), limits_(limits) {}

  absl::StatusOr<DecodeRequest> Take(const v1::DecodeRequest& request,
                                     Came came = Came::kAlone) const;
  absl::StatusOr<PrefillRequest> Take(const v1::PrefillRequest& request,
                                      Came came = Came::kAlone) const;
  absl::StatusOr<RebindRequest> Take(const v1::RebindRequest& request,
                                     Came came = Came::kAlone) const;
  absl::StatusOr<SendRequest> Take(const v1::SendRequest& request, Came came = Came::kAlone) const;

  // The last process at this address may have been another one.
  absl::Status CheckIncarnation(Incarnation expected) const;

 private:
  template <typename Request>
  absl::Status Check(const Request& request, Came came) const;

  const Incarnation incarnation_;
  const WireLimits limits_;
};

// A router's.
absl::StatusOr<HelloInfo> TakeHello(const v1::HelloResponse& hello);
// `worker`: the process that said hello.
absl::StatusOr<WorkerStatus> TakeStatus(const v1::WorkerStatus& status, Incarnation worker);

}  // namespace baton
