#pragma once

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <utility>

#include "common/http/paced_tasks.h"

namespace baton::http {

// A client's socket, or TLS over it: what Beast reads from and the connection writes to. Everything
// on the socket's thread; one read, one wait and one write at a time. Of TLS nothing is held for a
// client that says nothing beyond what OpenSSL keeps of a connection.
class HttpStream {
 public:
  using executor_type = boost::asio::ip::tcp::socket::executor_type;
  using Error = boost::system::error_code;

  // `tls` null: plaintext.
  HttpStream(boost::asio::ip::tcp::socket socket, SSL_CTX* tls);
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return socket_; }
  bool is_tls() const { return ssl_ != nullptr; }
  // The client's address; of IPv6 the network, which one client has whole.
  std::string ClientNetwork() const;

  // The server's part of TLS' handshake: `handler(error)`. A signature takes as long as hundreds of
  // writes, so its steps are tasks of `paced`. `handler` keeps the stream alive.
  template <typename Handler>
  void AsyncHandshake(PacedTasks& paced, Handler handler) {
    paced.Add([this, &paced, h = std::move(handler)] {
      const Error error = Handshake();
      if (error != boost::asio::error::would_block) return h(error);
      socket_.async_wait(blocked_on_, [this, &paced, h](Error e) {
        if (e) return h(e);
        AsyncHandshake(paced, h);
      });
    });
  }

  // `handler(error)` when ReadSome has something to look at, which may be nothing for a reader.
  template <typename Handler>
  void AsyncWaitRead(Handler handler) {
    if (HasPending()) return Complete(std::move(handler), Error());
    socket_.async_wait(boost::asio::ip::tcp::socket::wait_read, std::move(handler));
  }

  // At once: `would_block` if nothing is there, `eof` after the client's last byte.
  size_t ReadSome(boost::asio::mutable_buffer buffer, Error& error);

  // At once: `would_block` if the client has no room. Then the same is tried again, after
  // `handler(error)`.
  size_t WriteSome(boost::asio::const_buffer buffer, Error& error);
  template <typename Handler>
  void AsyncWaitWrite(Handler handler) {
    socket_.async_wait(is_tls() ? blocked_on_ : boost::asio::ip::tcp::socket::wait_write,
                       std::move(handler));
  }

  // No byte will follow; where no write is under way. Never waits.
  void ShutdownSend();
  void Close();

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  template <typename Handler, typename... Results>
  void Complete(Handler&& handler, Results... results) {
    boost::asio::post(get_executor(), [h = std::forward<Handler>(handler), results...]() mutable {
      h(results...);
    });
  }

  Error Handshake();
  bool HasPending() const;
  Error ErrorOf(int result);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<SSL, Free> ssl_;  // Reads and writes socket_, where it stands.
  boost::asio::ip::tcp::socket::wait_type blocked_on_ = boost::asio::ip::tcp::socket::wait_read;
};

}  // namespace baton::http
