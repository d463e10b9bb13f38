#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace baton {

// Calls of the services that the gRPC library brings (health, reflection) while they are open: no
// code of ours serves them, so only the library can end them. Thread-safe; outlives the servers.
class LibraryStreams {
 public:
  using Trust = std::function<bool(const grpc::AuthContext& peer)>;

  // `is_trusted` is asked as a call comes, and by CancelUntrusted.
  explicit LibraryStreams(Trust is_trusted) : is_trusted_(std::move(is_trusted)) {}

  // For the builder of each server whose calls are to be known here.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeFactory();

  // Ends the calls of those who are trusted no more, as CANCELLED. A call that was let in while
  // that changed is ended as it comes.
  void CancelUntrusted();

 private:
  class Interceptor;
  class Factory;

  void Enter(grpc::ServerContextBase* call);
  void Leave(grpc::ServerContextBase* call);

  const Trust is_trusted_;
  // A call's end waits for it, so those in the set live; the end that cancelling one brings about
  // within the same call of the library does not.
  std::recursive_mutex mutex_;  // Guards calls_.
  absl::flat_hash_set<grpc::ServerContextBase*> calls_;
};

}  // namespace baton
