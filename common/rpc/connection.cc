#include "common/rpc/connection.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"

namespace baton {
namespace {

constexpr int kKeepaliveTimeMs = 1000;
constexpr int kKeepaliveTimeoutMs = 1000;
constexpr int kMinPingIntervalMs = 500;
constexpr int kFirstReconnectMs = 100;
constexpr int kMaxReconnectMs = 1000;
constexpr std::chrono::milliseconds kClockSlack(50);  // The library counts in milliseconds.

}  // namespace

grpc::ChannelArguments ClusterChannelArguments() {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);     // Only the router's node retries.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // Cluster traffic never leaves by a proxy.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  args.SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  return args;
}

void ApplyServerSettings(int max_streams_per_connection, grpc::ServerBuilder* builder) {
  // Naming it links it, so that reflection can describe the health service.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  builder->SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  builder->SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, max_streams_per_connection);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

void SilenceLibraryLogs() {
  gpr_set_log_function([](gpr_log_func_args*) {});
  google::protobuf::SetLogHandler(nullptr);
}

gpr_timespec DeadlineAfter(Duration d) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(d.count(), GPR_TIMESPAN));
}

Duration TimeLeft(gpr_timespec deadline) {
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return Duration::zero();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  const Duration exact = std::chrono::seconds(left.tv_sec) + Duration(left.tv_nsec);
  return std::max<Duration>(exact, std::chrono::milliseconds(1));
}

const char* ReasonOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "INVALID_REQUEST";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "NOT_ALLOWED";
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

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status, absl::string_view reason, bool is_late) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (reason.empty() ? status.ok() : !status.ok() && reason == ReasonOf(code)) {
    return absl::Status(code, status.error_message());
  }
  if (!reason.empty()) return absl::UnavailableError("the worker's answer was damaged on its way");
  if (code == absl::StatusCode::kCancelled) return absl::CancelledError("the call was cancelled");
  if (is_late) return absl::DeadlineExceededError("the request's time is over");
  return absl::UnavailableError(
      code == absl::StatusCode::kUnavailable
          ? "the connection to the worker was lost"
          : absl::StrCat("the call to the worker broke: ", absl::StatusCodeToString(code)));
}

bool IsOfTheConnection(const absl::Status& status, absl::string_view reason) {
  if (absl::IsDataLoss(status)) return true;
  return absl::IsUnavailable(status) && reason != ReasonOf(status.code());
}

absl::string_view ReasonIn(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find(kReasonKey);
  if (it == trailers.end()) return "";
  return absl::string_view(it->second.data(), it->second.size());
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  const bool is_late = gpr_time_cmp(deadline, DeadlineAfter(kClockSlack)) <= 0;
  return FromGrpc(status, ReasonIn(context), is_late);
}

}  // namespace baton
