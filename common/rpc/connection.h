#pragma once

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/time.h"
#include "common/rpc/call_end.h"

// How every gRPC connection of the cluster is set up: dead peers are
// noticed by a ping each second with one second to answer, also on idle connections; every server
// accepts a ping each 500 ms. Messages and streams are capped.
namespace baton {

inline constexpr int kMaxGrpcMessageBytes = 16 << 20;
inline constexpr std::chrono::milliseconds kKeepaliveTimeout(1000);  // For the answer to a ping.

// Trailing metadata with the reason of an error that Baton itself gave, from a fixed list.
inline constexpr char kReasonKey[] = "baton-reason";

grpc::ChannelArguments ClusterChannelArguments(int max_receive_bytes = kMaxGrpcMessageBytes);

// Keepalive, limits, health, reflection, and no sharing of a port with another process.
void ApplyServerSettings(int max_streams_per_connection, grpc::ServerBuilder* builder,
                         Duration keepalive_timeout = kKeepaliveTimeout);

// The logs of gRPC and protobuf go nowhere, so that a peer cannot write into ours: what matters is
// logged by whoever sees the call fail.
void SilenceLibraryLogs();

// A gRPC deadline this far from now, on the steady clock.
gpr_timespec DeadlineAfter(Duration d);

// Time left until a gRPC deadline, at least 1 ms; zero when there is no deadline.
Duration TimeLeft(gpr_timespec deadline);

grpc::Status ToGrpc(const absl::Status& status);

// What a finished call came to; see StatusOf.
absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);
PeerEnd PeerEndOf(const grpc::Status& status, const grpc::ClientContext& context);

// Of a finished call: the reason with which the peer itself ended it, or empty.
absl::string_view ReasonIn(const grpc::ClientContext& context);

}  // namespace baton
