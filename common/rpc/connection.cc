#include "common/rpc/connection.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "grpc/health/v1/health.pb.h"

namespace baton {
namespace {

constexpr int kKeepaliveTimeMs = 1000;
constexpr int kKeepaliveTimeoutMs = static_cast<int>(kKeepaliveTimeout.count());
constexpr int kMinPingIntervalMs = 500;
constexpr int kHandshakeLimitMs = 5000;  // Of the library's own, 120 s, strangers hold sockets.
constexpr int kFirstReconnectMs = 100;
constexpr int kMaxReconnectMs = 1000;
constexpr std::chrono::milliseconds kClockSlack(50);  // The library counts in milliseconds.

}  // namespace

grpc::ChannelArguments ClusterChannelArguments(int max_receive_bytes) {
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
  args.SetMaxReceiveMessageSize(max_receive_bytes);
  args.SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  return args;
}

void ApplyServerSettings(int max_streams_per_connection, grpc::ServerBuilder* builder,
                         Duration keepalive_timeout) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // Naming it links it, so that reflection can describe the health service.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  builder->SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  builder->SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  const auto timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(keepalive_timeout);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(timeout_ms.count()));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeLimitMs);
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

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::string_view ReasonIn(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto it = trailers.find(kReasonKey);
  if (it == trailers.end()) return "";
  return absl::string_view(it->second.data(), it->second.size());
}

PeerEnd PeerEndOf(const grpc::Status& status, const grpc::ClientContext& context) {
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_MONOTONIC);
  return {.code = static_cast<absl::StatusCode>(status.error_code()),
          .message = status.error_message(),
          .reason = std::string(ReasonIn(context)),
          .is_late = gpr_time_cmp(deadline, DeadlineAfter(kClockSlack)) <= 0};
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  return StatusOf(PeerEndOf(status, context));
}

}  // namespace baton
