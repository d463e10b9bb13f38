#include "common/rpc/peer_certificate.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "common/rpc/connection.h"
#include "common/tls/openssl_handles.h"

namespace baton {

absl::StatusOr<int64_t> AskCertificateEnd(const std::string& address, TlsRole server,
                                          const ClusterTls& tls, Duration limit) {
  const auto note = std::make_shared<HandshakeNote>();
  const auto channel = grpc::CreateCustomChannel(
      address, tls.MakeChannelCredentials(server, note), ClusterChannelArguments());
  const gpr_timespec deadline = DeadlineAfter(limit);
  auto state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
         channel->WaitForStateChange(state, deadline)) {
    state = channel->GetState(true);
  }
  if (const std::string refused = note->Get(); !refused.empty()) {
    return absl::UnauthenticatedError(refused);
  }
  const std::vector<CertPtr> chain = ParseCertificates(note->peer());
  if (state != GRPC_CHANNEL_READY || chain.empty()) {
    return absl::UnavailableError(
        "nothing answers there, or it takes no certificate of this CA and release");
  }
  return NotAfter(chain.front().get());
}

}  // namespace baton
