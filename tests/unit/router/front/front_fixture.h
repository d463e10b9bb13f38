#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "router/front/grpc_front.h"
#include "tests/unit/common/http/test_client.h"
#include "tests/unit/common/http/test_tls.h"
#include "tests/unit/router/front/http2_bytes.h"

namespace baton {

// What the gRPC library would have of one connection; blocks, for 20 s at most.
class ServedEnd {
 public:
  explicit ServedEnd(int fd) : fd_(fd) {
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
    const timeval timeout{.tv_sec = 20};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  }
  ~ServedEnd() { close(fd_); }
  ServedEnd(const ServedEnd&) = delete;
  ServedEnd& operator=(const ServedEnd&) = delete;

  int fd() const { return fd_; }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // So many, or what came before the end.
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    size_t got = 0;
    while (got < size) {
      const ssize_t more = recv(fd_, &bytes[got], size - got, 0);
      if (more <= 0) break;
      got += static_cast<size_t>(more);
    }
    bytes.resize(got);
    return bytes;
  }
  // Nothing more comes; what did is passed over.
  bool AtEnd() {
    char chunk[16384];
    ssize_t got = 0;
    do {
      got = recv(fd_, chunk, sizeof(chunk), 0);
    } while (got > 0);
    return got == 0 || errno == ECONNRESET;  // It had not read all.
  }

 private:
  const int fd_;
};

template <typename Condition>
bool HoldsSoon(const Condition& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!condition() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(2));
  return condition();
}

// All that comes until the end.
inline std::string ReadAll(http::TestClient& client) {
  std::string bytes;
  for (std::string more = client.ReadSome(); !more.empty(); more = client.ReadSome()) bytes += more;
  return bytes;
}

inline std::string ReadExactly(http::TestClient& client, size_t size) {
  std::string bytes;
  while (bytes.size() < size) {
    const std::string more = client.ReadSome();
    if (more.empty()) break;
    bytes += more;
  }
  return bytes;
}

struct Connection {
  std::unique_ptr<http::TestClient> client;
  std::unique_ptr<ServedEnd> server;
};

// A front, and the other side of it: a client is `Client()`, what it gave to the library
// `Served()`.
class FrontTest : public ::testing::Test {
 protected:
  FrontTest() { signal(SIGPIPE, SIG_IGN); }  // OpenSSL writes to whoever has gone.

  void Serve(GrpcFrontOptions options = {}, bool over_tls = false) {
    if (over_tls) {
      options.tls = [tls = http::NewServerTls(HttpVersion::kHttp2)] { return tls; };
      client_tls_ = http::NewClientTls();
    }
    options.serve = [this](int fd) {
      absl::MutexLock lock(&mutex_);
      served_.push_back(fd);
    };
    auto front = GrpcFront::Create(std::move(options));
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = *std::move(front);
    front_->Start();
  }
  ~FrontTest() override {
    front_.reset();
    for (const int fd : served_) close(fd);
  }

  std::unique_ptr<http::TestClient> Client(int receive_bytes = 0, const char* from = "127.0.0.1") {
    return std::make_unique<http::TestClient>(front_->port(), receive_bytes, client_tls_.get(),
                                              from);
  }
  // One that has begun, and its other end. What it said first was read there.
  Connection Begun(int receive_bytes = 0, const char* from = "127.0.0.1") {
    auto client = Client(receive_bytes, from);
    EXPECT_TRUE(client->Send(ClientsBegin()));
    auto end = Served();
    EXPECT_EQ(end->Read(ClientsBegin().size()), ClientsBegin());
    return {std::move(client), std::move(end)};
  }
  std::unique_ptr<ServedEnd> Served() {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [this] {
      mutex_.AssertHeld();
      return !served_.empty();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20))) {
      ADD_FAILURE() << "nothing was handed over";
      return nullptr;
    }
    const int fd = served_.front();
    served_.pop_front();
    return std::make_unique<ServedEnd>(fd);
  }
  size_t num_unclaimed() {
    absl::MutexLock lock(&mutex_);
    return served_.size();
  }

  std::shared_ptr<SSL_CTX> client_tls_;
  std::unique_ptr<GrpcFront> front_;
  absl::Mutex mutex_;
  std::deque<int> served_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
