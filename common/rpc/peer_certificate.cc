#include "common/rpc/peer_certificate.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "common/rpc/connection.h"
#include "common/tls/openssl_handles.h"

namespace baton {
namespace {

// One handshake that is under way.
struct Look {
  std::shared_ptr<HandshakeNote> note;
  std::shared_ptr<grpc::Channel> channel;
};

Look StartLook(const TlsServerAt& server, const ClusterTls& tls) {
  Look look{.note = std::make_shared<HandshakeNote>(), .channel = nullptr};
  look.channel = grpc::CreateCustomChannel(
      server.address, tls.MakeLookCredentials(server.role, look.note), ClusterChannelArguments());
  (void)look.channel->GetState(/*try_to_connect=*/true);
  return look;
}

absl::StatusOr<int64_t> EndOf(const Look& look, const ClusterTls& tls, gpr_timespec deadline) {
  auto state = look.channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
         look.channel->WaitForStateChange(state, deadline)) {
    state = look.channel->GetState(true);
  }
  const std::vector<CertPtr> chain = ParseCertificates(look.note->peer());
  if (chain.empty()) return absl::UnavailableError("nothing answers there with a certificate");
  if (!tls.Trusts(look.note->peer())) {
    return absl::UnauthenticatedError("its certificate is of a CA that the own ca.crt has not");
  }
  if (const std::string refused = look.note->Get(); !refused.empty()) {
    return absl::UnauthenticatedError(refused);
  }
  if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    return absl::PermissionDeniedError("it does not take the own certificate");
  }
  if (state != GRPC_CHANNEL_READY) return absl::DeadlineExceededError("it does not answer in time");
  return NotAfter(chain.front().get());
}

}  // namespace

std::vector<absl::StatusOr<int64_t>> AskCertificateEnds(const std::vector<TlsServerAt>& servers,
                                                        const ClusterTls& tls, Duration limit) {
  const gpr_timespec deadline = DeadlineAfter(limit);
  std::vector<Look> looks;
  for (const TlsServerAt& server : servers) looks.push_back(StartLook(server, tls));
  std::vector<absl::StatusOr<int64_t>> ends;
  for (const Look& look : looks) ends.push_back(EndOf(look, tls, deadline));
  return ends;
}

}  // namespace baton
