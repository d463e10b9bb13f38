#include "common/rpc/audit_call.h"

#include <grpcpp/grpcpp.h>

#include "baton/v1/cluster.grpc.pb.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"

namespace baton {

absl::StatusOr<WorkerAudit> CallAudit(const WorkerAddress& worker, const ClusterTls* tls,
                                      Duration limit) {
  const auto note = std::make_shared<HandshakeNote>();
  const auto stub = v1::Cluster::NewStub(grpc::CreateCustomChannel(
      worker.address, ChannelCredentialsOf(tls, TlsRoleOf(worker.role), note),
      ClusterChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(limit));
  v1::AuditResponse response;
  const grpc::Status status = stub->Audit(&context, v1::AuditRequest(), &response);
  if (const std::string refused = note->Get(); !refused.empty()) {
    return absl::UnauthenticatedError(refused);
  }
  // That comes from the guard of the server, which gives no reason of ours.
  if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    return absl::PermissionDeniedError(status.error_message());
  }
  if (!status.ok()) return FromGrpc(status, context);
  return FromProto(response);
}

}  // namespace baton
