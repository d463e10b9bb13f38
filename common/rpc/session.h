#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "baton/v1/session.pb.h"
#include "common/rpc/seal.h"

// The rules of a session between a router and a worker (session.proto) that both of its ends share,
// without the network: its messages come whole, each once and in order.
namespace baton {

// What a message carries at most of more than one call: the next ones need not wait for long.
inline constexpr int64_t kMostMessageBytes = 256 << 10;
// What an end holds for a peer that does not read; beyond it the session ends.
inline constexpr int64_t kMostUnsentBytes = 64 << 20;
// What is said of one call at a time, within the largest message of a connection.
inline constexpr int64_t kMostItemBytes = (16 << 20) - 1024;
inline constexpr size_t kMostEndBytes = 1024;  // Of the text with which a call ends.

// A message as it is sent. May take long for a large one.
template <typename Message>
v1::SessionFrame SealFrame(const Message& message, uint32_t key) {
  v1::SessionFrame frame;
  message.SerializeToString(frame.mutable_message());
  frame.set_crc32c(ChecksumOf(frame.message(), key));
  return frame;
}

// What one end has to send, in order. `Message` is ToWorker or ToRouter, `Item` a call's part.
template <typename Message, typename Item>
class SessionOutput {
 public:
  void Add(Item item) {
    bytes_ += static_cast<int64_t>(item.ByteSizeLong());
    items_.push_back(std::move(item));
  }

  bool empty() const { return items_.empty(); }
  int64_t bytes() const { return bytes_; }  // That wait.

  void Clear() {
    items_.clear();
    bytes_ = 0;
  }

  // The next message, of nothing: a sign of life. Each is sent before the one after.
  Message SignOfLife(Message message = Message()) {
    message.set_number(++number_);
    return message;
  }

  // The next message, of whatever waits.
  Message Next(Message message = Message()) {
    message = SignOfLife(std::move(message));
    for (int64_t taken = 0; !items_.empty();) {
      const auto bytes = static_cast<int64_t>(items_.front().ByteSizeLong());
      if (taken > 0 && taken + bytes > kMostMessageBytes) break;
      taken += bytes;
      bytes_ -= bytes;
      *message.add_calls() = std::move(items_.front());
      items_.pop_front();
    }
    return message;
  }

 private:
  uint64_t number_ = 0;
  std::deque<Item> items_;
  int64_t bytes_ = 0;
};

// What one end receives.
class SessionInput {
 public:
  // The first of a worker comes without one: kNoPlace.
  void set_key(uint32_t key) { key_ = key; }

  // DATA_LOSS: it was damaged on its way, or another one is missing.
  template <typename Message>
  absl::Status Take(const v1::SessionFrame& frame, Message* message) {
    if (frame.crc32c() != ChecksumOf(frame.message(), key_) ||
        !message->ParseFromString(frame.message())) {
      return absl::DataLossError("crc32c does not match: the message was damaged on its way");
    }
    return CheckNumber(message->number());
  }

 private:
  absl::Status CheckNumber(uint64_t number);

  uint32_t key_ = kNoPlace;
  uint64_t number_ = 0;
};

}  // namespace baton
