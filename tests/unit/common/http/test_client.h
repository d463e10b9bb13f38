#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace baton::http {

// One answer as it came over the wire; `body` is without chunk framing.
struct WireResponse {
  int status = 0;  // 0 = the connection ended before a complete answer.
  std::string head;
  std::string body;

  std::string Header(std::string_view name) const {
    const size_t at = head.find("\r\n" + std::string(name) + ": ");
    if (at == std::string::npos) return "";
    const size_t start = at + name.size() + 4;
    return head.substr(start, head.find("\r\n", start) - start);
  }
};

// A blocking client on a raw socket, for what a well-behaved one would not send; or over TLS.
class TestClient {
 public:
  // What clients speak from now on; null = plaintext. Their handshakes come with their first bytes.
  static inline SSL_CTX* default_tls = nullptr;

  // `from`: an address of this machine.
  explicit TestClient(uint16_t port, int receive_buffer_bytes = 0, SSL_CTX* tls = default_tls,
                      const char* from = "127.0.0.1") {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    const timeval timeout{.tv_sec = 20};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    if (tls == nullptr) return;
    ssl_ = SSL_new(tls);
    SSL_set_fd(ssl_, fd_);
    SSL_set_connect_state(ssl_);
  }
  ~TestClient() { Close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }
  SSL* ssl() const { return ssl_; }  // Null in plaintext.

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ssl_ != nullptr
                            ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                            : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // That have come and that nobody has read.
  int BytesWaiting() const {
    int bytes = 0;
    return ioctl(fd_, FIONREAD, &bytes) == 0 ? bytes : 0;
  }

  // The next bytes; empty at the end of the connection.
  std::string ReadSome() {
    char chunk[16384];
    if (ssl_ != nullptr) {
      ERR_clear_error();
      const int n = SSL_read(ssl_, chunk, sizeof(chunk));
      ended_ = n <= 0 && SSL_get_error(ssl_, n) != SSL_ERROR_WANT_READ;
      return n > 0 ? std::string(chunk, static_cast<size_t>(n)) : std::string();
    }
    const ssize_t n = recv(fd_, chunk, sizeof(chunk), 0);
    ended_ = n == 0 || (n < 0 && errno == ECONNRESET);
    return n > 0 ? std::string(chunk, static_cast<size_t>(n)) : std::string();
  }

  WireResponse Read(bool head_only = false) {
    WireResponse response;
    size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return response;
    }
    response.head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    const int status = std::atoi(response.head.c_str() + 9);
    if (!head_only && status != 204 && status != 100 && !ReadBody(response)) return response;
    response.status = status;
    return response;
  }

  WireResponse Get(std::string_view path) {
    Send("GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n\r\n");
    return Read();
  }
  void SendPost(std::string_view path, std::string_view body) {
    Send("POST " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json" +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
  }
  WireResponse Post(std::string_view path, std::string_view body) {
    SendPost(path, body);
    return Read();
  }

  // True once the server has closed the connection (after what it still had to say), false when it
  // stays silent.
  bool AtEnd() {
    while (Fill()) {
    }
    return ended_;
  }
  void ShutdownSend() {
    if (ssl_ != nullptr) SSL_shutdown(ssl_);
    shutdown(fd_, SHUT_WR);
  }
  void Close() {
    SSL_free(ssl_);
    ssl_ = nullptr;
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  bool Fill() {
    const std::string more = ReadSome();
    buffer_ += more;
    return !more.empty();
  }

  bool ReadBody(WireResponse& response) {
    if (response.Header("Transfer-Encoding") == "chunked") return ReadChunks(response);
    const std::string length = response.Header("Content-Length");
    if (length.empty()) {
      AtEnd();
      response.body.swap(buffer_);
      return true;
    }
    const size_t bytes = std::strtoul(length.c_str(), nullptr, 10);
    while (buffer_.size() < bytes) {
      if (!Fill()) return false;
    }
    response.body = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return true;
  }

  bool ReadChunks(WireResponse& response) {
    for (;;) {
      size_t line = 0;
      while ((line = buffer_.find("\r\n")) == std::string::npos) {
        if (!Fill()) return false;
      }
      const size_t bytes = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + bytes + 2) {
        if (!Fill()) return false;
      }
      response.body += buffer_.substr(line + 2, bytes);
      buffer_.erase(0, line + 2 + bytes + 2);
      if (bytes == 0) return true;
    }
  }

  int fd_ = -1;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  bool ended_ = false;
  std::string buffer_;
};

}  // namespace baton::http
