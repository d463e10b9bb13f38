#include "common/rpc/call_end.h"

#include "absl/strings/str_cat.h"

namespace baton {

const char* ReasonOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_REQUEST";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kUnauthenticated:
      return "NOT_AUTHENTICATED";
    case absl::StatusCode::kPermissionDenied:
      return "NOT_ALLOWED";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kUnknown:
      return "UNKNOWN";
    case absl::StatusCode::kResourceExhausted:
      return "OVERLOADED";
    case absl::StatusCode::kFailedPrecondition:
      return "WRONG_INCARNATION_OR_STATE";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kUnimplemented:
      return "NOT_SUPPORTED";
    case absl::StatusCode::kUnavailable:
      return "WORKER_UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "BAD_PEER_DATA";
    default:
      return "INTERNAL";
  }
}

absl::Status StatusOf(const PeerEnd& end) {
  const bool is_ok = end.code == absl::StatusCode::kOk;
  if (end.reason.empty() ? is_ok : !is_ok && end.reason == ReasonOf(end.code)) {
    return absl::Status(end.code, end.message);
  }
  if (!end.reason.empty()) return absl::DataLossError("the worker's answer was damaged on its way");
  if (end.code == absl::StatusCode::kCancelled) {
    return absl::CancelledError("the call was cancelled");
  }
  if (end.is_late) return absl::DeadlineExceededError("the request's time is over");
  return absl::UnavailableError(
      end.code == absl::StatusCode::kUnavailable
          ? "the connection to the worker was lost"
          : absl::StrCat("the call to the worker broke: ", absl::StatusCodeToString(end.code)));
}

bool IsOfTheConnection(const absl::Status& status, absl::string_view reason) {
  if (absl::IsDataLoss(status)) return true;
  return absl::IsUnavailable(status) && reason != ReasonOf(status.code());
}

}  // namespace baton
