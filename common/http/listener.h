#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace baton::http {

// Accepts connections on a port that no other process shares. Outlives what runs on `io`.
class Listener {
 public:
  // What its server does, all on the thread of `io`.
  struct Server {
    std::function<void(boost::asio::ip::tcp::socket)> take;
    // No file may be opened for the next one: whether one is being closed for it.
    std::function<bool()> make_room;
    // With those that it has taken: the next one waits in the kernel's queue for a while.
    std::function<bool()> is_behind;
  };
  Listener(boost::asio::io_context& io, Server server);

  // UNAVAILABLE names host and port, INVALID_ARGUMENT the host. 0 = any free port.
  absl::Status Bind(const std::string& host, uint16_t port);
  uint16_t port() const { return port_; }

  // On the thread of `io`.
  void Accept();
  void Close();

 private:
  using Error = boost::system::error_code;

  void TakeNext();
  void AcceptAfter(std::chrono::milliseconds wait);

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer timer_;
  const Server server_;
  uint16_t port_ = 0;
};

}  // namespace baton::http
