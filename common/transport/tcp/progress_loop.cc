#include "common/transport/tcp/progress_loop.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kListenerId = 1;
constexpr int kAcceptsPerTurn = 64;
constexpr timespec kStagingWait{.tv_sec = 0, .tv_nsec = 100'000};
constexpr Duration kListenPause = std::chrono::milliseconds(100);

absl::Status AddToEpoll(int epoll, int fd, uint64_t id) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError("the KV transport cannot watch its sockets");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressLoop>> ProgressLoop::Create(const TcpOptions& options,
                                                                   FileDescriptor listener,
                                                                   CallQueue* calls,
                                                                   CounterBoard* counters) {
  std::unique_ptr<ProgressLoop> loop(
      new ProgressLoop(options, std::move(listener), calls, counters));
  if (!loop->epoll_.open()) return absl::InternalError("the KV transport has no epoll");
  absl::Status status = AddToEpoll(loop->epoll_.get(), calls->wake_fd(), kWakeId);
  status.Update(AddToEpoll(loop->epoll_.get(), loop->listener_.get(), kListenerId));
  if (!status.ok()) return status;
  return loop;
}

ProgressLoop::ProgressLoop(const TcpOptions& options, FileDescriptor listener, CallQueue* calls,
                           CounterBoard* counters)
    : calls_(calls),
      counters_(counters),
      listener_(std::move(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      connections_(options, counters, this) {}

absl::StatusOr<std::unique_ptr<ByteStream>> ProgressLoop::Connect(const std::string& endpoint) {
  ASSIGN_OR_RETURN(FileDescriptor socket, ConnectTcp(endpoint));
  return std::make_unique<SocketStream>(std::move(socket));
}

// What is not read is not told of again and again, a broken connection neither; the next change of
// interest asks anew.
bool ProgressLoop::Watch(uint64_t id, ByteStream& stream, const Interest& interest, bool is_new) {
  epoll_event event{
      .events = uint32_t{interest.read ? EPOLLIN : EPOLLET} | (interest.write ? EPOLLOUT : 0u),
      .data = {.u64 = id}};
  const int op = is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  return ::epoll_ctl(epoll_.get(), op, stream.fd(), &event) == 0;
}

void ProgressLoop::ExecuteCalls() {
  for (TransportCall& call : calls_->Take()) connections_.Execute(std::move(call));
}

void ProgressLoop::AcceptConnections() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    auto socket = AcceptTcp(listener_);
    if (socket.ok()) {
      connections_.Accept(std::make_unique<SocketStream>(*std::move(socket)));
      continue;
    }
    if (absl::IsResourceExhausted(socket.status())) {
      counters_->Add(&TransportCounters::refused_connections);
      listen_again_ = now_ + kListenPause;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    }
    return;
  }
}

void ProgressLoop::ListenAgain() {
  if (now_ < listen_again_) return;
  listen_again_ = kNever;
  if (!AddToEpoll(epoll_.get(), listener_.get(), kListenerId).ok()) {
    listen_again_ = now_ + kListenPause;
  }
}

int ProgressLoop::WaitMs() const {
  const Time next = std::min(listen_again_, connections_.NextDeadline());
  if (next == kNever) return -1;
  const double ms = std::ceil(ToSeconds(next - now_) * 1e3);
  return static_cast<int>(std::clamp(ms, 0.0, 60e3));
}

// A copy takes less than the millisecond that epoll_wait counts in.
int ProgressLoop::Wait(std::span<epoll_event> events) const {
  int ms = WaitMs();
  if (connections_.staging() && ms != 0) {
    pollfd any{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    ::ppoll(&any, 1, &kStagingWait, nullptr);
    ms = 0;
  }
  return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), ms);
}

bool ProgressLoop::Poll() {
  now_ = SteadyNow();
  connections_.BeginTurn(now_);
  connections_.EndTurn();
  epoll_event events[64];
  const int n = Wait(events);
  now_ = SteadyNow();
  connections_.BeginTurn(now_);
  if (calls_->stopped()) {
    connections_.Shutdown();
    return false;
  }
  ExecuteCalls();
  bool accept = false;
  for (int i = 0; i < n; ++i) {
    const uint64_t id = events[i].data.u64;
    const bool broken = (events[i].events & (EPOLLERR | EPOLLHUP)) != 0;
    if (id == kListenerId) {
      accept = true;
    } else if (id != kWakeId) {
      connections_.Serve(id, broken || (events[i].events & EPOLLIN) != 0,
                         broken || (events[i].events & EPOLLOUT) != 0);
    }
  }
  if (accept) AcceptConnections();
  ListenAgain();
  return true;
}

}  // namespace baton
