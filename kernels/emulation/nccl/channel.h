#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "common/base/random.h"

namespace baton::emulation::nccl {

enum class Kind : uint32_t { kReady = 1, kConnect, kWork, kPayload, kTaken };

struct Message {
  Kind kind = Kind::kReady;
  std::vector<std::byte> body;
};

// A connection of two ranks: messages in order, each late by a drawn time.
class Channel {
 public:
  // Takes the socket.
  Channel(int socket, uint64_t seed, int64_t delay_us);
  ~Channel();
  Channel(const Channel&) = delete;

  // Until the other one has closed or Stop(), which it tells apart: true if the other one closed.
  // `on_message` is called without locks, by the calling thread.
  bool Serve(const std::function<void(Message)>& on_message);
  // Any thread.
  void Post(Message message);
  // Any thread. What was posted and has not gone yet is lost.
  void Stop();
  // Any thread. For both ends it is as if the other one had closed.
  void Cut();

 private:
  // False: the connection is closed.
  bool ReadSome(const std::function<void(Message)>& on_message);
  bool WriteSome();
  void Delay();

  const int socket_;
  const int wake_;  // An eventfd.
  const int64_t delay_us_;
  Random random_;
  std::vector<std::byte> in_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::deque<std::vector<std::byte>> out_;
  size_t written_ = 0;  // Of the first.
};

}  // namespace baton::emulation::nccl
