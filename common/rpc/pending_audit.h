#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "common/rpc/call_end.h"
#include "common/rpc/connection.h"

namespace baton {

inline void FinishWith(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                       const absl::Status& status) {
  if (!status.ok()) context->AddTrailingMetadata(kReasonKey, ReasonOf(status.code()));
  reactor->Finish(ToGrpc(status));
}

// One Audit call. Finishes it exactly once, also when nobody answers; gRPC keeps the context until
// then.
class PendingAudit {
 public:
  PendingAudit(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor)
      : context_(context), reactor_(reactor) {}
  ~PendingAudit() { Finish(absl::UnavailableError("the worker is shutting down")); }
  PendingAudit(const PendingAudit&) = delete;
  PendingAudit& operator=(const PendingAudit&) = delete;

  void Finish(const absl::Status& status) {
    if (auto* reactor = std::exchange(reactor_, nullptr)) FinishWith(context_, reactor, status);
  }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* reactor_;
};

}  // namespace baton
