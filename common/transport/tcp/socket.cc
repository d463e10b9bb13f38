#include "common/transport/tcp/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

struct FreeAddress {
  void operator()(addrinfo* info) const { freeaddrinfo(info); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddress>;

absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", host, "\" port \"", port, "\": ", gai_strerror(error)));
  }
  return Addresses(found);
}

void SetOption(int fd, int level, int option, int value = 1) {
  // Best effort: a kernel without the option is slower, not wrong.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// Small frames go out at once; a peer whose host is gone is noticed in about a minute even when
// nothing is under way.
void SetConnectionOptions(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

void FileDescriptor::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

ssize_t SocketStream::Read(const iovec* parts, int num_parts) {
  return ::readv(socket_.get(), parts, num_parts);
}

ssize_t SocketStream::Write(const iovec* parts, int num_parts) {
  const msghdr message{.msg_iov = const_cast<iovec*>(parts),
                       .msg_iovlen = static_cast<size_t>(num_parts)};
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
}

absl::Status SocketStream::ConnectResult() { return baton::ConnectResult(socket_); }

absl::StatusOr<FileDescriptor> ListenTcp(const std::string& host, int port) {
  auto addresses = Resolve(host, std::to_string(port), AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  int error = 0;
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) {
    FileDescriptor fd(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.open()) {
      error = errno;
      continue;
    }
    SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR);
    if (::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), 512) == 0) return fd;
    error = errno;
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen for KV on ", host, ":", port, ": ", std::strerror(error)));
}

absl::StatusOr<std::string> LocalEndpoint(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return absl::InternalError("the bound address cannot be read");
  }
  if (address.ss_family == AF_INET6) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == endpoint.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV endpoint \"", endpoint, "\" is not host:port"));
  }
  std::string host = endpoint.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  auto addresses = Resolve(host, endpoint.substr(colon + 1), AI_NUMERICHOST);
  if (!addresses.ok()) return addresses.status();
  const addrinfo* a = addresses->get();
  FileDescriptor fd(::socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open()) {
    return absl::UnavailableError(absl::StrCat("no socket for KV: ", std::strerror(errno)));
  }
  SetConnectionOptions(fd.get());
  if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(
        absl::StrCat("KV connection to ", endpoint, ": ", std::strerror(errno)));
  }
  return fd;
}

absl::Status ConnectResult(const FileDescriptor& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("KV connection: ", std::strerror(error)));
}

absl::StatusOr<FileDescriptor> AcceptTcp(const FileDescriptor& listener) {
  for (;;) {
    FileDescriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.open()) {
      SetConnectionOptions(fd.get());
      return fd;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return absl::ResourceExhaustedError(std::strerror(errno));
      default:
        return absl::NotFoundError("no connection waits");
    }
  }
}

}  // namespace baton
