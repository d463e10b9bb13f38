#include "common/transport/tcp/tcp_kv_transport.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"

namespace baton {

absl::StatusOr<std::unique_ptr<TcpKvTransport>> TcpKvTransport::Create(TcpOptions options) {
  RETURN_IF_ERROR(Validate(options.transport));
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV port is ", options.port, "; choose 0 to 65535"));
  }
  if (!(options.time_scale > 0) || options.max_unauthenticated < 1 || options.max_incoming < 1 ||
      options.max_outgoing < 1) {
    return absl::InvalidArgumentError("KV time scale and connection limits must be positive");
  }
  ASSIGN_OR_RETURN(FileDescriptor listener, ListenTcp(options.bind_host, options.port));
  ASSIGN_OR_RETURN(std::string endpoint, LocalEndpoint(listener));
  std::unique_ptr<TcpKvTransport> transport(new TcpKvTransport(std::move(options)));
  if (!transport->calls_.open()) return absl::InternalError("the KV transport has no eventfd");
  transport->endpoint_ = std::move(endpoint);
  ASSIGN_OR_RETURN(transport->loop_,
                   ProgressLoop::Create(transport->options_, std::move(listener),
                                        &transport->calls_, &transport->counters_));
  const bool is_first = transport->options_.transport.place.rank == 0;
  transport->thread_ = std::thread([loop = transport->loop_.get(), is_first] {
    NameThisThread(is_first ? "transport" : "transport-rank");
    while (loop->Poll()) {
    }
  });
  return transport;
}

TcpKvTransport::TcpKvTransport(TcpOptions options) : options_(std::move(options)) {}

TcpKvTransport::~TcpKvTransport() {
  if (!thread_.joinable()) return;
  calls_.Stop();
  thread_.join();
}

int TcpKvTransport::port() const { return std::atoi(endpoint_.c_str() + endpoint_.rfind(':') + 1); }

}  // namespace baton
