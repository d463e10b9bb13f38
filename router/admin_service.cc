#include "router/admin_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "baton/v1/admin.grpc.pb.h"
#include "common/base/status.h"
#include "common/rpc/admin_call.h"
#include "common/rpc/connection.h"

namespace baton {
namespace {

constexpr int kMaxAdminStreams = 16;  // Of one connection.

// A call that ends exactly once, also if whoever was to answer it is dropped.
class PendingAnswer {
 public:
  PendingAnswer(grpc::CallbackServerContext* context, v1::AdminAnswer* answer)
      : context_(context), reactor_(context->DefaultReactor()), answer_(answer) {}
  ~PendingAnswer() { Finish(absl::UnavailableError("the router is shutting down")); }
  PendingAnswer(const PendingAnswer&) = delete;
  PendingAnswer& operator=(const PendingAnswer&) = delete;

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  void Finish(absl::StatusOr<std::string> document) {
    if (std::exchange(is_done_, true)) return;
    if (document.ok()) {
      answer_->set_json(*std::move(document));
    } else {
      context_->AddTrailingMetadata(kReasonKey, ReasonOf(document.status().code()));
    }
    reactor_->Finish(ToGrpc(document.status()));
  }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* const reactor_;
  v1::AdminAnswer* const answer_;
  bool is_done_ = false;
};

}  // namespace

class AdminServer::Impl : public v1::Admin::CallbackService {
 public:
  explicit Impl(AdminServerOptions options) : options_(std::move(options)) {}
  ~Impl() override { Shutdown(Duration::zero()); }

  absl::Status Start() {
    grpc::ServerBuilder builder;
    ApplyServerSettings(kMaxAdminStreams, &builder);
    builder.SetMaxSendMessageSize(kMaxDocumentBytes);
    const std::string address = absl::StrCat(options_.host, ":", options_.port);
    ASSIGN_OR_RETURN(const auto credentials, options_.tls->MakeServerCredentials());
    options_.tls->GuardServer(&builder);
    builder.AddListeningPort(address, credentials, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat("--admin-port ", options_.port,
                                                 ": cannot listen on ", address,
                                                 "; choose a free port, or 0 for any"));
    }
    server_->GetHealthCheckService()->SetServingStatus(true);
    return absl::OkStatus();
  }

  int port() const { return port_; }

  void Shutdown(Duration grace) {
    if (server_ == nullptr) return;
    server_->GetHealthCheckService()->SetServingStatus(false);
    server_->Shutdown(DeadlineAfter(grace));
    server_->Wait();
    server_.reset();
  }

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::AdminRequest*,
                                   v1::AdminAnswer* answer) override {
    return Answer(context, answer, options_.status);
  }

  grpc::ServerUnaryReactor* Audit(grpc::CallbackServerContext* context, const v1::AdminRequest*,
                                  v1::AdminAnswer* answer) override {
    return Answer(context, answer, options_.audit);
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::AdminRequest*,
                                  v1::AdminAnswer* answer) override {
    options_.drain();
    PendingAnswer pending(context, answer);
    pending.Finish("{}");
    return pending.reactor();
  }

 private:
  // gRPC keeps context and answer until the call is finished, also if it was cancelled.
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, v1::AdminAnswer* answer,
                                   std::function<absl::StatusOr<std::string>()> document) {
    auto pending = std::make_shared<PendingAnswer>(context, answer);
    grpc::ServerUnaryReactor* const reactor = pending->reactor();
    options_.executor([pending = std::move(pending), document = std::move(document)] {
      pending->Finish(document());
    });
    return reactor;
  }

  const AdminServerOptions options_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

AdminServer::AdminServer(AdminServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

AdminServer::~AdminServer() = default;

absl::Status AdminServer::Start() { return impl_->Start(); }

int AdminServer::port() const { return impl_->port(); }

void AdminServer::Shutdown(Duration grace) { impl_->Shutdown(grace); }

}  // namespace baton
