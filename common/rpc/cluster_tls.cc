#include "common/rpc/cluster_tls.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <stdlib.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/failed_handshakes.h"
#include "common/rpc/method_roles.h"
#include "common/telemetry/log.h"

namespace baton {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kRefreshS = 1;
constexpr int kMaxIdleMs = 5000;  // Of a connection; a router's to a worker has its Watch.
constexpr size_t kMaxVerdicts = 1024;  // More peers than that are verified anew.
// A suite that no connection of ours can use: TLS 1.2 is then left without any.
constexpr char kNoSuiteOfTls12[] = "PSK-AES128-GCM-SHA256";

absl::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// The one process that a certificate names.
absl::StatusOr<SpiffeId> PeerId(const std::vector<grpc::string_ref>& uris) {
  if (uris.size() != 1) return absl::PermissionDeniedError("it names no or several URIs");
  return ParseSpiffeId(View(uris[0]));
}

std::string FirstOf(const grpc::AuthContext& context, const char* property) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(property);
  return values.empty() ? "" : std::string(View(values[0]));
}

// After the library has checked chain and dates: who is it?
class ReleaseVerifier : public tls::ExternalCertificateVerifier {
 public:
  // `role` null: any. `note` null: nobody asks.
  ReleaseVerifier(const SpiffeId& own, const TlsRole* role, std::shared_ptr<HandshakeNote> note,
                  std::shared_ptr<TlsRefusals> refusals)
      : own_(own), has_role_(role != nullptr), note_(std::move(note)),
        refusals_(std::move(refusals)) {
    if (has_role_) role_ = *role;
  }

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* result) override {
    if (note_ != nullptr) note_->SetPeer(std::string(View(request->peer_cert_full_chain())));
    const absl::Status status = Check(PeerId(request->uri_names()));
    if (!status.ok()) {
      ++refusals_->identity;
      *result = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(status.message()));
      if (note_ != nullptr) note_->Set(std::string(status.message()));
    }
    return true;  // Done at once.
  }

  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  absl::Status Check(const absl::StatusOr<SpiffeId>& peer) const {
    if (!peer.ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat("the URI of its certificate ", peer.status().message()));
    }
    if (!peer->SameRelease(own_)) {
      return absl::UnauthenticatedError(
          absl::StrCat("its certificate is of another release, ", peer->ToUri()));
    }
    if (has_role_ && peer->role != role_) {
      return absl::UnauthenticatedError(absl::StrCat("its certificate is of role ",
                                                     RoleWord(peer->role), " where ",
                                                     RoleWord(role_), " was configured"));
    }
    return absl::OkStatus();
  }

  const SpiffeId own_;
  const bool has_role_;
  TlsRole role_ = TlsRole::kAdmin;
  const std::shared_ptr<HandshakeNote> note_;
  const std::shared_ptr<TlsRefusals> refusals_;
};

// Guards every service of a server, also those that libraries add.
class MethodGuard : public grpc::AuthMetadataProcessor {
 public:
  explicit MethodGuard(const ClusterTls* tls) : tls_(tls) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const absl::string_view method = path == metadata.end() ? "" : View(path->second);
    const absl::StatusOr<SpiffeId> peer =
        PeerId(context->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME));
    const std::optional<std::set<TlsRole>> roles = RolesFor(method);
    if (context->IsPeerAuthenticated() && peer.ok() && roles.has_value() &&
        roles->count(peer->role) > 0) {
      if (tls_->TrustsPeer(*context)) return grpc::Status::OK;
      ++tls_->refusals().ca;
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                          "your certificate is of a CA that is trusted no more");
    }
    ++tls_->refusals().method;
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                        absl::StrCat("role ", peer.ok() ? RoleWord(peer->role) : "unknown",
                                     " may not call ", roles.has_value() ? method : "this"));
  }

 private:
  const ClusterTls* const tls_;
};

std::string PairOf(const TlsFiles& files) {
  return absl::StrCat(files.key_pem, "\n", files.chain_pem);
}

}  // namespace

void HandshakeNote::Set(std::string why) {
  absl::MutexLock lock(&mutex_);
  why_ = std::move(why);
}

std::string HandshakeNote::Get() const {
  absl::MutexLock lock(&mutex_);
  return why_;
}

void HandshakeNote::SetPeer(std::string chain_pem) {
  absl::MutexLock lock(&mutex_);
  peer_ = std::move(chain_pem);
}

std::string HandshakeNote::peer() const {
  absl::MutexLock lock(&mutex_);
  return peer_;
}

ClusterTls::ClusterTls()
    : library_streams_(std::make_unique<LibraryStreams>(
          [this](const grpc::AuthContext& peer) { return TrustsPeer(peer); })) {}

absl::StatusOr<std::unique_ptr<ClusterTls>> ClusterTls::Create(const std::string& dir,
                                                               TlsRole role) {
  setenv("GRPC_SSL_CIPHER_SUITES", kNoSuiteOfTls12, /*overwrite=*/1);
  CountFailedHandshakes();
  std::unique_ptr<ClusterTls> made(new ClusterTls);
  ClusterTls* const self = made.get();
  TlsWatchOptions options{.dir = dir, .role = role, .unix_seconds = UnixSeconds};
  options.on_change = [self](const TlsIdentity& next) { self->Publish(next); };
  options.on_refused = [self](const absl::Status& why) {
    ++self->refused_;
    Log(LogLevel::kWarning, "new certificates not taken", {{"why", std::string(why.message())}});
  };
  ASSIGN_OR_RETURN(made->watch_, TlsWatch::Create(std::move(options)));
  const std::shared_ptr<const TlsIdentity> first = made->current();
  ASSIGN_OR_RETURN(made->pair_, PublishedPem::Create(PairOf(first->files)));
  ASSIGN_OR_RETURN(made->ca_, PublishedPem::Create(first->files.ca_pem));
  Log(LogLevel::kInfo, "certificates",
      {{"identity", first->id.ToUri()}, {"not_after", first->not_after_s}});
  made->watch_->Start();
  return made;
}

void ClusterTls::Publish(const TlsIdentity& identity) {
  library_streams_->CancelUntrusted();
  absl::Status status = pair_->Publish(PairOf(identity.files));
  if (status.ok()) status = ca_->Publish(identity.files.ca_pem);
  if (!status.ok()) {
    ++refused_;
    return Log(LogLevel::kError, "new certificates not taken", {{"why", status}});
  }
  Log(LogLevel::kInfo, "certificates",
      {{"identity", identity.id.ToUri()}, {"not_after", identity.not_after_s}});
}

bool ClusterTls::Trusts(const std::string& chain_pem) const {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<const TlsIdentity> now = current();
  if (verdicts_.of != now || verdicts_.by_chain.size() >= kMaxVerdicts) verdicts_ = {.of = now};
  const auto [found, is_new] = verdicts_.by_chain.try_emplace(chain_pem, false);
  if (is_new) found->second = LeadsTo(chain_pem, now->files.ca_pem);
  return found->second;
}

bool ClusterTls::TrustsPeer(const grpc::AuthContext& peer) const {
  return Trusts(absl::StrCat(FirstOf(peer, GRPC_X509_PEM_CERT_PROPERTY_NAME), "\n",
                             FirstOf(peer, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME)));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ClusterTls::MakeServerCredentials() const {
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      pair_->path(), pair_->path(), ca_->path(), kRefreshS));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ReleaseVerifier>(
      current()->id, nullptr, nullptr, refusals_));
  std::shared_ptr<grpc::ServerCredentials> made = tls::TlsServerCredentials(options);
  if (made == nullptr) return absl::InternalError("gRPC takes no TLS credentials");
  made->SetAuthMetadataProcessor(std::make_shared<MethodGuard>(this));
  return made;
}

void ClusterTls::GuardServer(grpc::ServerBuilder* builder) const {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(library_streams_->MakeFactory());
  builder->experimental().SetInterceptorCreators(std::move(factories));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
}

std::shared_ptr<grpc::ChannelCredentials> ClusterTls::MakeChannelCredentials(
    TlsRole server, std::shared_ptr<HandshakeNote> note) const {
  return MakeCredentials(server, /*verifies=*/true, std::move(note));
}

std::shared_ptr<grpc::ChannelCredentials> ClusterTls::MakeLookCredentials(
    TlsRole server, std::shared_ptr<HandshakeNote> note) const {
  return MakeCredentials(server, /*verifies=*/false, std::move(note));
}

std::shared_ptr<grpc::ChannelCredentials> ClusterTls::MakeCredentials(
    TlsRole server, bool verifies, std::shared_ptr<HandshakeNote> note) const {
  const std::shared_ptr<const TlsIdentity> own = current();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      own->files.ca_pem, std::vector<tls::IdentityKeyCertPair>{
                             {.private_key = own->files.key_pem,
                              .certificate_chain = own->files.chain_pem}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(verifies);
  options.set_check_call_host(false);  // Processes are known by role, whatever host they run on.
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ReleaseVerifier>(
      own->id, &server, std::move(note), refusals_));
  return tls::TlsCredentials(options);
}

TlsRole TlsRoleOf(Role worker) {
  return worker == Role::kPrefill ? TlsRole::kPrefill : TlsRole::kDecode;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(
    const ClusterTls* tls) {
  if (tls == nullptr) return grpc::InsecureServerCredentials();
  return tls->MakeServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const ClusterTls* tls, TlsRole server, std::shared_ptr<HandshakeNote> note) {
  if (tls == nullptr) return grpc::InsecureChannelCredentials();
  return tls->MakeChannelCredentials(server, std::move(note));
}

}  // namespace baton
