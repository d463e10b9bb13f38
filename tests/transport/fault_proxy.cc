#include "tests/transport/fault_proxy.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/wire.h"

namespace baton {

FaultProxy::FaultProxy(std::string target)
    : target_(std::move(target)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  auto listener = ListenTcp("127.0.0.1", 0);
  BATON_CHECK(listener.ok() && stop_.open());
  listener_ = *std::move(listener);
  endpoint_ = *LocalEndpoint(listener_);
  thread_ = std::thread([this] { Run(); });
}

FaultProxy::~FaultProxy() {
  const uint64_t one = 1;
  BATON_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void FaultProxy::Set(const ProxyFaults& faults) {
  std::lock_guard lock(mutex_);
  faults_ = faults;
}

int64_t FaultProxy::bytes_forwarded() const {
  std::lock_guard lock(mutex_);
  return forwarded_;
}

void FaultProxy::Run() {
  for (;;) {
    std::erase_if(pairs_, [](const auto& pair) { return !pair->open; });
    std::vector<pollfd> fds{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& pair : pairs_) {
      fds.push_back({pair->stalled ? -1 : pair->from.get(), POLLIN, 0});
      fds.push_back({pair->to.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) return;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      Pair* pair = pairs_[i].get();
      if (fds[2 + 2 * i].revents != 0) Forward(pair);
      if (pair->open && fds[3 + 2 * i].revents != 0) {
        char buffer[4096];
        const ssize_t n = ::read(pair->to.get(), buffer, sizeof(buffer));
        if (n == 0 || (n < 0 && errno != EAGAIN)) pair->open = false;
        if (n > 0) SendAll(pair, pair->from.get(), buffer, static_cast<size_t>(n));
      }
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
  ProxyFaults faults;
  {
    std::lock_guard lock(mutex_);
    faults = faults_;
  }
  char buffer[16384];
  const ssize_t n = ::read(pair->from.get(), buffer, sizeof(buffer));
  if (n <= 0) {
    if (n == 0 || errno != EAGAIN) pair->open = false;
    return;
  }
  int64_t size = n;
  if (const int64_t at = faults.flip_bit / 8 - pair->offset;
      faults.flip_bit >= 0 && at >= 0 && at < size) {
    buffer[at] = static_cast<char>(buffer[at] ^ (1 << (faults.flip_bit % 8)));
  }
  bool cut = false;
  for (int64_t end : {faults.cut_at_byte, faults.stall_at_byte}) {
    if (end < 0 || end >= pair->offset + size) continue;
    size = std::max<int64_t>(0, end - pair->offset);
    (end == faults.cut_at_byte ? cut : pair->stalled) = true;
  }
  pair->offset += size;
  if (faults.duplicate_frame < 0 && faults.drop_frame < 0) {
    SendAll(pair, pair->to.get(), buffer, static_cast<size_t>(size));
  } else {
    pair->held.insert(pair->held.end(), buffer, buffer + size);
    SendFrames(pair, faults);
  }
  if (cut) pair->open = false;
  std::lock_guard lock(mutex_);
  forwarded_ += size;
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
