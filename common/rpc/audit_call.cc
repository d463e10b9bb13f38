#include "common/rpc/audit_call.h"

#include <grpcpp/grpcpp.h>

#include "baton/v1/cluster.grpc.pb.h"
#include "common/rpc/connection.h"
#include "common/rpc/message_wire.h"

namespace baton {

absl::StatusOr<WorkerAudit> CallAudit(const std::string& address, Duration limit) {
  const auto stub = v1::Cluster::NewStub(grpc::CreateCustomChannel(
      address, grpc::InsecureChannelCredentials(), ClusterChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(limit));
  v1::AuditResponse response;
  const grpc::Status status = stub->Audit(&context, v1::AuditRequest(), &response);
  if (!status.ok()) return FromGrpc(status, context);
  return FromProto(response);
}

}  // namespace baton
