#include "common/http/http_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>

#include "common/base/check.h"

namespace baton::http {

using boost::asio::ip::tcp;
using Error = boost::system::error_code;

namespace {

tcp::socket& SocketOf(BIO* bio) { return *static_cast<tcp::socket*>(BIO_get_data(bio)); }

// What OpenSSL asks of a socket. Its own would raise SIGPIPE for a client that has gone.
int Read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  Error error;
  const size_t bytes =
      SocketOf(bio).read_some(boost::asio::buffer(data, static_cast<size_t>(size)), error);
  if (!error) return static_cast<int>(bytes);
  if (error == boost::asio::error::would_block) BIO_set_retry_read(bio);
  return error == boost::asio::error::eof ? 0 : -1;
}

int Write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  Error error;
  const size_t bytes =
      SocketOf(bio).write_some(boost::asio::buffer(data, static_cast<size_t>(size)), error);
  if (!error) return static_cast<int>(bytes);
  if (error == boost::asio::error::would_block) BIO_set_retry_write(bio);
  return -1;
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// Lives as long as the process.
BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "http-socket");
    BATON_CHECK(made != nullptr);
    BIO_meth_set_read(made, Read);
    BIO_meth_set_write(made, Write);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

}  // namespace

HttpStream::HttpStream(tcp::socket socket, SSL_CTX* tls) : socket_(std::move(socket)) {
  if (tls == nullptr) return;
  ssl_.reset(SSL_new(tls));
  BIO* const bio = BIO_new(SocketMethod());
  BATON_CHECK(ssl_ != nullptr && bio != nullptr);
  BIO_set_data(bio, &socket_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_accept_state(ssl_.get());
}

std::string HttpStream::ClientNetwork() const {
  Error error;
  const auto address = socket_.remote_endpoint(error).address();
  if (error || !address.is_v6() || address.to_v6().is_v4_mapped()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return boost::asio::ip::address_v6(bytes).to_string();
}

// Why an operation ended so, and what it waits for.
Error HttpStream::ErrorOf(int result) {
  const int why = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  switch (why) {
    case SSL_ERROR_WANT_READ:
      blocked_on_ = tcp::socket::wait_read;
      return boost::asio::error::would_block;
    case SSL_ERROR_WANT_WRITE:
      blocked_on_ = tcp::socket::wait_write;
      return boost::asio::error::would_block;
    case SSL_ERROR_ZERO_RETURN:
      return boost::asio::error::eof;
    default:
      return boost::asio::error::connection_reset;
  }
}

Error HttpStream::Handshake() {
  ERR_clear_error();  // What another call has left would be taken for this one's.
  const int result = SSL_do_handshake(ssl_.get());
  return result == 1 ? Error() : ErrorOf(result);
}

size_t HttpStream::ReadSome(boost::asio::mutable_buffer buffer, Error& error) {
  if (!is_tls()) return socket_.read_some(boost::asio::buffer(buffer), error);
  size_t bytes = 0;
  ERR_clear_error();
  const int result = SSL_read_ex(ssl_.get(), buffer.data(), buffer.size(), &bytes);
  error = result == 1 ? Error() : ErrorOf(result);
  return bytes;
}

size_t HttpStream::WriteSome(boost::asio::const_buffer buffer, Error& error) {
  if (!is_tls()) return socket_.write_some(boost::asio::buffer(buffer), error);
  size_t bytes = 0;
  ERR_clear_error();
  const int result = SSL_write_ex(ssl_.get(), buffer.data(), buffer.size(), &bytes);
  error = result == 1 ? Error() : ErrorOf(result);
  return bytes;
}

bool HttpStream::HasPending() const { return is_tls() && SSL_pending(ssl_.get()) > 0; }

void HttpStream::ShutdownSend() {
  if (is_tls() && SSL_is_init_finished(ssl_.get())) {
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void HttpStream::Close() {
  Error ignored;
  socket_.close(ignored);
}

}  // namespace baton::http
