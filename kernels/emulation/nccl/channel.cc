#include "kernels/emulation/nccl/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "kernels/emulation/nccl/nccl_options.h"

namespace baton::emulation::nccl {
namespace {

struct Header {
  uint64_t kind;
  uint64_t bytes;
};

}  // namespace

Channel::Channel(int socket, uint64_t seed, int64_t delay_us)
    : socket_(socket), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), delay_us_(delay_us),
      random_(seed) {
  fcntl(socket_, F_SETFL, O_NONBLOCK);
}

Channel::~Channel() {
  close(socket_);
  close(wake_);
}

bool Channel::Serve(const std::function<void(Message)>& on_message) {
  for (;;) {
    bool writes;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return false;
      writes = !out_.empty();
    }
    const short events = static_cast<short>(POLLIN | (writes ? POLLOUT : 0));
    pollfd polled[2] = {{socket_, events, 0}, {wake_, POLLIN, 0}};
    poll(polled, 2, -1);
    uint64_t count;
    if (polled[1].revents != 0) (void)!read(wake_, &count, sizeof(count));
    if ((polled[0].revents & POLLOUT) != 0 && !WriteSome()) return true;
    if ((polled[0].revents & ~POLLOUT) != 0 && !ReadSome(on_message)) return true;
  }
}

void Channel::Post(Message message) {
  std::vector<std::byte> bytes(sizeof(Header) + message.body.size());
  const Header header = {static_cast<uint64_t>(message.kind), message.body.size()};
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(message.body.begin(), message.body.end(), bytes.begin() + sizeof(header));
  const std::lock_guard lock(mutex_);
  out_.push_back(std::move(bytes));
  (void)!eventfd_write(wake_, 1);
}

void Channel::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  stop_.notify_all();
  (void)!eventfd_write(wake_, 1);
}

void Channel::Cut() { shutdown(socket_, SHUT_RDWR); }

bool Channel::ReadSome(const std::function<void(Message)>& on_message) {
  std::byte buffer[1 << 16];
  const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (n > 0) in_.insert(in_.end(), buffer, buffer + n);
  while (in_.size() >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, in_.data(), sizeof(header));
    if (in_.size() - sizeof(header) < header.bytes) break;
    const auto body = in_.begin() + sizeof(header);
    const auto end = body + static_cast<ptrdiff_t>(header.bytes);
    Message message = {static_cast<Kind>(header.kind), {body, end}};
    in_.erase(in_.begin(), end);
    Delay();
    on_message(std::move(message));
  }
  return true;
}

bool Channel::WriteSome() {
  std::unique_lock lock(mutex_);
  const std::vector<std::byte>& first = out_.front();
  // A longer message goes in two halves at least, and something may happen between them.
  const size_t half = first.size() / 2;
  const size_t end = written_ < half ? half : first.size();
  const ssize_t n = send(socket_, first.data() + written_, end - written_, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  written_ += static_cast<size_t>(n);
  const bool halfway = written_ == half && half > 32;
  if (written_ == first.size()) {
    out_.pop_front();
    written_ = 0;
  }
  lock.unlock();
  if (halfway) Pass("sending");
  return true;
}

void Channel::Delay() {
  if (delay_us_ == 0) return;
  const auto late = std::chrono::microseconds(
      static_cast<int64_t>(random_.Below(static_cast<uint64_t>(delay_us_) + 1)));
  std::unique_lock lock(mutex_);
  stop_.wait_for(lock, late, [this] { return stopped_; });
}

}  // namespace baton::emulation::nccl
