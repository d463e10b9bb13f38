#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/transport/tcp/byte_stream.h"

namespace baton {

// Owns an open file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// A connected or connecting non-blocking socket.
class SocketStream : public ByteStream {
 public:
  explicit SocketStream(FileDescriptor socket) : socket_(std::move(socket)) {}

  ssize_t Read(const iovec* parts, int num_parts) override;
  ssize_t Write(const iovec* parts, int num_parts) override;
  absl::Status ConnectResult() override;
  int fd() const override { return socket_.get(); }

 private:
  FileDescriptor socket_;
};

// Listens, non-blocking. `host` may be a name (resolved here, blocking) or an address; port 0 is
// any free port. UNAVAILABLE names address and cause.
absl::StatusOr<FileDescriptor> ListenTcp(const std::string& host, int port);

// "host:port" or "[v6]:port" of a bound socket.
absl::StatusOr<std::string> LocalEndpoint(const FileDescriptor& socket);

// Starts a non-blocking connect to a numeric "host:port" ("[v6]:port", or "localhost:port"): the
// progress thread must not wait for a name server. INVALID_ARGUMENT or UNAVAILABLE. Completion
// shows as writability; then ConnectResult says how it ended.
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& endpoint);
absl::Status ConnectResult(const FileDescriptor& socket);

// One waiting connection, non-blocking and without delay; NOT_FOUND when there is none,
// RESOURCE_EXHAUSTED when this process is out of descriptors or memory.
absl::StatusOr<FileDescriptor> AcceptTcp(const FileDescriptor& listener);

}  // namespace baton
