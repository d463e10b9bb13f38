#include "common/rpc/gate.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"

namespace baton {

absl::Status RequestGate::CheckIncarnation(Incarnation expected) const {
  if (expected == incarnation_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "expected_incarnation = ", expected, ": another process runs here now; say Hello again"));
}

template <typename Request>
absl::Status RequestGate::Check(const Request& request, Came came) const {
  if (came == Came::kInSession) return absl::OkStatus();
  RETURN_IF_ERROR(CheckSeal(request));
  return CheckIncarnation(request.expected_incarnation());
}

absl::StatusOr<DecodeRequest> RequestGate::Take(const v1::DecodeRequest& request, Came came) const {
  RETURN_IF_ERROR(Check(request, came));
  return FromProto(request, limits_);
}

absl::StatusOr<PrefillRequest> RequestGate::Take(const v1::PrefillRequest& request,
                                                 Came came) const {
  RETURN_IF_ERROR(Check(request, came));
  return FromProto(request, limits_);
}

absl::StatusOr<RebindRequest> RequestGate::Take(const v1::RebindRequest& request, Came came) const {
  RETURN_IF_ERROR(Check(request, came));
  return FromProto(request);
}

absl::StatusOr<SendRequest> RequestGate::Take(const v1::SendRequest& request, Came came) const {
  RETURN_IF_ERROR(Check(request, came));
  return FromProto(request, limits_);
}

absl::StatusOr<HelloInfo> TakeHello(const v1::HelloResponse& hello) {
  RETURN_IF_ERROR(CheckSeal(hello));
  return FromProto(hello);
}

absl::StatusOr<WorkerStatus> TakeStatus(const v1::WorkerStatus& status, Incarnation worker) {
  RETURN_IF_ERROR(CheckSeal(status));
  ASSIGN_OR_RETURN(WorkerStatus valid, FromProto(status));
  if (valid.incarnation == worker) return valid;
  return absl::FailedPreconditionError("it is of another incarnation");
}

}  // namespace baton
