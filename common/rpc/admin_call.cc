#include "common/rpc/admin_call.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "baton/v1/admin.grpc.pb.h"
#include "common/rpc/connection.h"

namespace baton {
namespace {

grpc::Status CallBy(v1::Admin::Stub* stub, AdminMethod method, grpc::ClientContext* context,
                    v1::AdminAnswer* answer) {
  const v1::AdminRequest request;
  switch (method) {
    case AdminMethod::kStatus:
      return stub->Status(context, request, answer);
    case AdminMethod::kAudit:
      return stub->Audit(context, request, answer);
    case AdminMethod::kDrain:
      return stub->Drain(context, request, answer);
  }
  return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
}

}  // namespace

absl::StatusOr<std::string> CallAdmin(const std::string& router, AdminMethod method,
                                      const ClusterTls& tls, Duration limit) {
  const auto note = std::make_shared<HandshakeNote>();
  const auto stub = v1::Admin::NewStub(grpc::CreateCustomChannel(
      router, tls.MakeChannelCredentials(TlsRole::kRouter, note),
      ClusterChannelArguments(kMaxDocumentBytes)));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(limit));
  v1::AdminAnswer answer;
  const grpc::Status status = CallBy(stub.get(), method, &context, &answer);
  if (const std::string refused = note->Get(); !refused.empty()) {
    return absl::UnauthenticatedError(refused);
  }
  // That comes from the guard of the server, which gives no reason of ours.
  if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
    return absl::PermissionDeniedError(status.error_message());
  }
  if (status.ok()) return answer.json();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (!ReasonIn(context).empty()) return absl::Status(code, status.error_message());
  if (absl::IsDeadlineExceeded(absl::Status(code, ""))) {
    return absl::DeadlineExceededError("there is no answer");
  }
  return absl::UnavailableError(
      "nothing answers there, or it takes no certificate of this CA and release");
}

}  // namespace baton
