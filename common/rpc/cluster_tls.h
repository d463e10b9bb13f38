#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/node/message.h"
#include "common/rpc/library_streams.h"
#include "common/tls/published_pem.h"
#include "common/tls/tls_watch.h"

namespace baton {

// What a handshake has shown, for those who see only that it came to an end. Thread-safe.
class HandshakeNote {
 public:
  void Set(std::string why);
  std::string Get() const;  // Empty: this side refused nobody.

  // The certificates of the other side, PEM, leaf first.
  void SetPeer(std::string chain_pem);
  std::string peer() const;

 private:
  mutable absl::Mutex mutex_;
  std::string why_ ABSL_GUARDED_BY(mutex_);
  std::string peer_ ABSL_GUARDED_BY(mutex_);
};

// Peers refused after the library has found their certificates good, by why. Those before:
// failed_handshakes.h.
struct TlsRefusals {
  std::atomic<int64_t> identity = 0;  // At the handshake: of another release or role.
  std::atomic<int64_t> method = 0;    // A call that the role may not make.
  std::atomic<int64_t> ca = 0;        // A call by whom no CA of the moment knows.
};

// Mutual TLS 1.3 of the control plane, from the files of --tls-dir, which may be replaced at any
// time: new connections go by the new ones within three seconds. Old connections stay while Trusts
// is true of who is at the other end: links and servers see to that. Thread-safe.
class ClusterTls {
 public:
  // Must come before anything else of gRPC: it takes TLS 1.2 from the whole process. The error
  // names --tls-dir, the file and the cure.
  static absl::StatusOr<std::unique_ptr<ClusterTls>> Create(const std::string& dir, TlsRole role);

  // Clients need a certificate of the same CA and release, and a role that the method allows; their
  // calls also one that the CAs of the moment still know. This outlives the server.
  absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials() const;

  // Of a server with these credentials: whoever is trusted no more loses the calls that the library
  // serves, and a connection without calls ends after five seconds.
  void GuardServer(grpc::ServerBuilder* builder) const;

  // For one connection: by the certificate of the moment, to a server of that role only. What is
  // refused goes to `note`.
  std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
      TlsRole server, std::shared_ptr<HandshakeNote> note) const;

  // The same for a handshake alone, after which nothing may be sent: a server whose certificate has
  // ended, or is of another CA, is not refused, so that `note` has it.
  std::shared_ptr<grpc::ChannelCredentials> MakeLookCredentials(
      TlsRole server, std::shared_ptr<HandshakeNote> note) const;

  std::shared_ptr<const TlsIdentity> current() const { return watch_->current(); }

  // Whether certificates (PEM, leaf first) lead to a CA of the moment, whatever their dates: one
  // that ends leaves the connections that it has made.
  bool Trusts(const std::string& chain_pem) const;

  // The same of the other end of a call that is being served.
  bool TrustsPeer(const grpc::AuthContext& peer) const;

  TlsRefusals& refusals() const { return *refusals_; }

  // Editions of --tls-dir that were not taken.
  int64_t refused_editions() const { return refused_; }
  bool is_behind() const { return watch_->is_behind(); }  // The last of them is still there.

 private:
  ClusterTls();
  void Publish(const TlsIdentity& identity);
  std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(
      TlsRole server, bool verifies, std::shared_ptr<HandshakeNote> note) const;

  // What Trusts has found out, as long as the files are the same ones.
  struct Verdicts {
    std::shared_ptr<const TlsIdentity> of;
    absl::flat_hash_map<std::string, bool> by_chain;
  };

  std::unique_ptr<PublishedPem> pair_;  // Key and chain, which are switched together.
  std::unique_ptr<PublishedPem> ca_;
  std::atomic<int64_t> refused_ = 0;
  const std::shared_ptr<TlsRefusals> refusals_ = std::make_shared<TlsRefusals>();
  mutable absl::Mutex mutex_;
  mutable Verdicts verdicts_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<LibraryStreams> library_streams_;
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
