#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/node/message.h"
#include "common/tls/published_pem.h"
#include "common/tls/tls_watch.h"

namespace baton {

// Why a handshake ended, for those who see only that it did. Thread-safe.
class HandshakeNote {
 public:
  void Set(std::string why);
  std::string Get() const;  // Empty: this side refused nobody.

 private:
  mutable absl::Mutex mutex_;
  std::string why_ ABSL_GUARDED_BY(mutex_);
};

// Mutual TLS 1.3 of the control plane, from the files of --tls-dir, which may be replaced at any
// time: new connections go by the new ones within three seconds, old connections stay. Thread-safe.
class ClusterTls {
 public:
  // Must come before anything else of gRPC: it takes TLS 1.2 from the whole process. The error
  // names --tls-dir, the file and the cure.
  static absl::StatusOr<std::unique_ptr<ClusterTls>> Create(const std::string& dir, TlsRole role);

  // Clients need a certificate of the same CA and release, and a role that the method allows.
  absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials() const;

  // For one connection: by the certificate of the moment, to a server of that role only. What is
  // refused goes to `note`.
  std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
      TlsRole server, std::shared_ptr<HandshakeNote> note) const;

  std::shared_ptr<const TlsIdentity> current() const { return watch_->current(); }

  // Generations in --tls-dir that were not taken.
  int64_t refused_generations() const { return refused_; }

 private:
  ClusterTls() = default;
  void Publish(const TlsIdentity& identity);

  std::unique_ptr<PublishedPem> pair_;  // Key and chain, which are switched together.
  std::unique_ptr<PublishedPem> ca_;
  std::atomic<int64_t> refused_ = 0;
  std::unique_ptr<TlsWatch> watch_;  // Last: its thread uses the rest.
};

// That of a worker.
TlsRole TlsRoleOf(Role worker);

// What both ends use: those of `tls`, or plaintext without one.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const ClusterTls* tls);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const ClusterTls* tls,
                                                               TlsRole server,
                                                               std::shared_ptr<HandshakeNote> note);

}  // namespace baton
