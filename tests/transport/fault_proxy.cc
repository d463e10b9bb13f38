#include "tests/transport/fault_proxy.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/transport/wire.h"

namespace baton {
namespace {

// Flips bit `bit` of a stream whose bytes from `offset` on are these.
void Flip(int64_t bit, int64_t offset, std::span<char> bytes) {
  const int64_t at = bit / 8 - offset;
  if (bit < 0 || at < 0 || at >= static_cast<int64_t>(bytes.size())) return;
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << (bit % 8)));
}

}  // namespace

FaultProxy::FaultProxy(std::string target)
    : target_(std::move(target)), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  auto listener = ListenTcp("127.0.0.1", 0);
  BATON_CHECK(listener.ok() && wake_.open());
  listener_ = *std::move(listener);
  endpoint_ = *LocalEndpoint(listener_);
  thread_ = std::thread([this] { Run(); });
}

FaultProxy::~FaultProxy() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void FaultProxy::Wake() {
  const uint64_t one = 1;
  BATON_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

void FaultProxy::Set(const ProxyFaults& faults) {
  {
    std::lock_guard lock(mutex_);
    faults_ = faults;
  }
  Wake();
}

ProxyFaults FaultProxy::faults() const {
  std::lock_guard lock(mutex_);
  return faults_;
}

void FaultProxy::Run() {
  for (;;) {
    std::erase_if(pairs_, [](const auto& pair) { return !pair->open; });
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& pair : pairs_) {
      fds.push_back({pair->stalled.empty() ? pair->from.get() : -1, POLLIN, 0});
      fds.push_back({pair->to.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) {
      uint64_t count;
      BATON_CHECK(::read(wake_.get(), &count, sizeof(count)) == sizeof(count));
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    for (size_t i = 0; i < pairs_.size(); ++i) {
      Pair* pair = pairs_[i].get();
      if (!pair->stalled.empty()) PassOn(pair, std::exchange(pair->stalled, {}));
      if (pair->open && fds[2 + 2 * i].revents != 0) Forward(pair);
      if (pair->open && fds[3 + 2 * i].revents != 0) ForwardAnswer(pair);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void FaultProxy::Accept() {
  auto from = AcceptTcp(listener_);
  if (!from.ok()) return;
  auto to = ConnectTcp(target_);
  if (!to.ok()) return;
  auto pair = std::make_unique<Pair>();
  pair->from = *std::move(from);
  pair->to = *std::move(to);
  pairs_.push_back(std::move(pair));
}

void FaultProxy::SendAll(Pair* pair, int fd, const char* data, size_t size) {
  while (size > 0 && pair->open) {
    const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
    if (n > 0) {
      data += n;
      size -= static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == ENOTCONN) {
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, 1000);
    } else {
      pair->open = false;
    }
  }
}

void FaultProxy::Forward(Pair* pair) {
  std::vector<char> bytes(16384);
  const ssize_t n = ::read(pair->from.get(), bytes.data(), bytes.size());
  if (n <= 0) {
    if (n == 0 || errno != EAGAIN) pair->open = false;
    return;
  }
  bytes.resize(static_cast<size_t>(n));
  PassOn(pair, std::move(bytes));
}

void FaultProxy::ForwardAnswer(Pair* pair) {
  char buffer[4096];
  const ssize_t n = ::read(pair->to.get(), buffer, sizeof(buffer));
  if (n == 0 || (n < 0 && errno != EAGAIN)) pair->open = false;
  if (n <= 0) return;
  Flip(faults().flip_answer_bit, pair->answer_offset, {buffer, static_cast<size_t>(n)});
  pair->answer_offset += n;
  SendAll(pair, pair->from.get(), buffer, static_cast<size_t>(n));
}

// Lets the bytes through, up to a cut or a stall.
void FaultProxy::PassOn(Pair* pair, std::vector<char> bytes) {
  const ProxyFaults faults = this->faults();
  const auto before = [&](int64_t end) {
    return end < 0 ? bytes.size()
                   : std::min(bytes.size(), static_cast<size_t>(std::max<int64_t>(
                                                0, end - pair->offset)));
  };
  const size_t stall = before(faults.stall_at_byte);
  pair->stalled.assign(bytes.begin() + static_cast<ptrdiff_t>(stall), bytes.end());
  bytes.resize(stall);
  const size_t cut = before(faults.cut_at_byte);
  const bool cuts = cut < bytes.size();
  bytes.resize(cut);
  Flip(faults.flip_bit, pair->offset, bytes);
  pair->offset += static_cast<int64_t>(bytes.size());
  if (faults.duplicate_frame < 0 && faults.drop_frame < 0) {
    SendAll(pair, pair->to.get(), bytes.data(), bytes.size());
  } else {
    pair->held.insert(pair->held.end(), bytes.begin(), bytes.end());
    SendFrames(pair, faults);
  }
  if (cuts) pair->open = false;
}

void FaultProxy::SendFrames(Pair* pair, const ProxyFaults& faults) {
  while (pair->held.size() >= kHeaderBytes) {
    uint32_t payload;
    std::memcpy(&payload, pair->held.data() + 52, sizeof(payload));
    const size_t size = kHeaderBytes + (payload > 0 ? payload + kTrailerBytes : 0);
    if (pair->held.size() < size) return;
    const int times =
        pair->frame == faults.duplicate_frame ? 2 : (pair->frame == faults.drop_frame ? 0 : 1);
    for (int i = 0; i < times; ++i) SendAll(pair, pair->to.get(), pair->held.data(), size);
    pair->held.erase(pair->held.begin(), pair->held.begin() + static_cast<ptrdiff_t>(size));
    ++pair->frame;
  }
}

}  // namespace baton
