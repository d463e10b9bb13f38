#include "common/rpc/library_streams.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/strings/match.h"

namespace baton {

class LibraryStreams::Interceptor : public grpc::experimental::Interceptor {
 public:
  Interceptor(LibraryStreams* all, grpc::ServerContextBase* call) : all_(all), call_(call) {}
  ~Interceptor() override {
    if (entered_) all_->Leave(call_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    // Before it the call cannot be cancelled, nor does it know its peer.
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      entered_ = true;
      all_->Enter(call_);
    }
    methods->Proceed();
  }

 private:
  LibraryStreams* const all_;
  grpc::ServerContextBase* const call_;
  bool entered_ = false;
};

class LibraryStreams::Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(LibraryStreams* all) : all_(all) {}

  // None for our own services, whose calls end themselves.
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (!absl::StartsWith(info->method(), "/grpc.")) return nullptr;
    return new Interceptor(all_, info->server_context());
  }

 private:
  LibraryStreams* const all_;
};

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
LibraryStreams::MakeFactory() {
  return std::make_unique<Factory>(this);
}

void LibraryStreams::Enter(grpc::ServerContextBase* call) {
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  if (!is_trusted_(*call->auth_context())) call->TryCancel();
}

void LibraryStreams::Leave(grpc::ServerContextBase* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
}

void LibraryStreams::CancelUntrusted() {
  const std::lock_guard lock(mutex_);
  const absl::flat_hash_set<grpc::ServerContextBase*> before = calls_;
  for (grpc::ServerContextBase* call : before) {
    if (calls_.contains(call) && !is_trusted_(*call->auth_context())) call->TryCancel();
  }
}

}  // namespace baton
