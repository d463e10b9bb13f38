#include "common/http/listener.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"

namespace baton::http {

using boost::asio::ip::tcp;

namespace {

// Accepting again after the process ran out of file descriptors.
constexpr std::chrono::milliseconds kAcceptRetry(50);
constexpr std::chrono::milliseconds kAcceptSoon(5);  // One was closed for it.

}  // namespace

Listener::Listener(boost::asio::io_context& io, Server server)
    : acceptor_(io), timer_(io), server_(std::move(server)) {}

absl::Status Listener::Bind(const std::string& host, uint16_t port) {
  Error error;
  const auto address =
      boost::asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "host \"%s\" is not an IP address; use 127.0.0.1 or ::1 for this machine", host));
  }
  const tcp::endpoint endpoint(address, port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(boost::asio::socket_base::max_listen_connections, error);
  if (!error) acceptor_.non_blocking(true, error);
  if (!error) port_ = acceptor_.local_endpoint(error).port();
  if (error) {
    return absl::UnavailableError(
        absl::StrFormat("cannot listen on %s port %d: %s", host, port, error.message()));
  }
  return absl::OkStatus();
}

// Waits for a client first: without a free file descriptor accept fails even if there is none.
void Listener::Accept() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](Error) {
    if (acceptor_.is_open()) TakeNext();
  });
}

void Listener::TakeNext() {
  Error error;
  tcp::socket socket = acceptor_.accept(error);
  if (error && error != boost::asio::error::would_block) {
    return AcceptAfter(server_.make_room() ? kAcceptSoon : kAcceptRetry);
  }
  if (!error) server_.take(std::move(socket));
  if (server_.is_behind()) return AcceptAfter(kAcceptSoon);
  Accept();
}

void Listener::AcceptAfter(std::chrono::milliseconds wait) {
  timer_.expires_after(wait);
  timer_.async_wait([this](Error error) {
    if (!error && acceptor_.is_open()) Accept();
  });
}

void Listener::Close() {
  Error ignored;
  acceptor_.close(ignored);
  timer_.cancel();
}

}  // namespace baton::http
