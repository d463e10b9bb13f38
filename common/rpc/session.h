#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "baton/v1/session.pb.h"
#include "common/rpc/seal.h"
#include "common/rpc/session_memory.h"

// The rules of a session between a router and a worker (session.proto) that both of its ends share,
// without the network: its messages come whole, each once and in order.
namespace baton {

// What a message carries at most of more than one call: the next ones need not wait for long.
inline constexpr int64_t kMostMessageBytes = 256 << 10;
// What is said of one call at a time, within the largest message of a connection.
inline constexpr int64_t kMostItemBytes = (16 << 20) - 1024;
// Of one call's bulk that waits: a worker ends the call rather than, soon, the session. The scores
// of the largest request that routers of ours ask for fit, of a prompt of up to 262,144 tokens: it
// ends nowhere in the middle, however many of them a step computes.
inline constexpr int64_t kMostBulkMiB = 16;
inline constexpr int64_t kMostBulkBytes = kMostBulkMiB << 20;
inline constexpr size_t kMostEndBytes = 1024;  // Of the text with which a call ends.

// A message as it is sent. May take long for a large one.
template <typename Message>
v1::SessionFrame SealFrame(const Message& message, uint32_t key) {
  v1::SessionFrame frame;
  message.SerializeToString(frame.mutable_message());
  frame.set_crc32c(ChecksumOf(frame.message(), key));
  return frame;
}

// What one end has to send. `Message` is ToWorker or ToRouter, `Item` a call's part.
//
// Bulk (what opens calls; scores) is passed by everything else, so that no token and no cancel
// waits for prompts and scores of other calls. What is said of one call stays in its order: behind
// bulk of its own that waits an item is bulk too.
template <typename Message, typename Item>
class SessionOutput {
 public:
  // `share`, if any, counts what waits and what is being written; it outlives this.
  explicit SessionOutput(SessionMemory::Share* share = nullptr) : share_(share) {}

  void Add(Item item) { Put(std::move(item), /*is_bulk=*/false); }
  void AddBulk(Item item) { Put(std::move(item), /*is_bulk=*/true); }

  bool empty() const { return urgent_.empty() && bulk_.empty(); }
  int64_t bytes() const { return bytes_; }  // That wait or are being written.
  // Of the call's, that wait.
  int64_t BulkBytesOf(uint64_t call) const {
    const auto it = bulk_of_.find(call);
    int64_t bytes = 0;
    if (it == bulk_of_.end()) return 0;
    for (const auto& one : it->second) bytes += one->bytes;
    return bytes;
  }

  // The call's bulk that waits, and what waits behind it, is not sent; all else of it is.
  void DropBulk(uint64_t call) {
    const auto waiting = bulk_of_.extract(call);
    if (waiting.empty()) return;
    for (const auto& one : waiting.mapped()) {
      Count(-one->bytes);
      bulk_.erase(one);
    }
  }

  // The same, but if what waits first of the call is bulk of its own, that keeps its place, as
  // `cut` leaves it. True: so it was.
  template <typename Cut>
  bool Withdraw(uint64_t call, const Cut& cut) {
    const auto it = bulk_of_.find(call);
    if (it == bulk_of_.end() || !it->second.front()->is_bulk) return false;
    Item first = std::move(it->second.front()->item);
    cut(first);
    const auto place = bulk_.insert(it->second.front(), MakeWaiting(std::move(first), true));
    DropBulk(call);
    Count(place->bytes);
    bulk_of_[call].push_back(place);
    return true;
  }

  void Clear() {
    Count(being_written_ - bytes_);
    urgent_.clear();
    bulk_.clear();
    bulk_of_.clear();
  }

  // The last message is written.
  void Written() { Count(-std::exchange(being_written_, 0)); }

  // The next message, of nothing: a sign of life. Each is sent before the one after.
  Message SignOfLife(Message message = Message()) {
    Written();
    message.set_number(++number_);
    return message;
  }

  // The next message, of whatever waits.
  Message Next(Message message = Message()) {
    message = SignOfLife(std::move(message));
    if (IsBulksTurn()) TakeBulk(message);
    while (!urgent_.empty() && Fits(urgent_.front())) {
      Take(urgent_.front(), message);
      urgent_.pop_front();
    }
    // Only then: nothing of a call is passed by its own bulk.
    while (urgent_.empty() && !bulk_.empty() && Fits(bulk_.front())) TakeBulk(message);
    num_passed_ = bulk_.empty() || took_bulk_ ? 0 : num_passed_ + 1;
    took_bulk_ = false;
    return message;
  }

 private:
  static constexpr int kMostPassed =
      3;  // Messages that pass bulk which waits, one after the other.

  struct Waiting {
    Item item;
    int64_t bytes = 0;
    bool is_bulk = false;  // Not for what waits before it.
  };
  using Bulk = std::list<Waiting>;

  static Waiting MakeWaiting(Item item, bool is_bulk) {
    const auto bytes = static_cast<int64_t>(item.ByteSizeLong());
    return {.item = std::move(item), .bytes = bytes, .is_bulk = is_bulk};
  }

  void Put(Item item, bool is_bulk) {
    Waiting waiting = MakeWaiting(std::move(item), is_bulk);
    const uint64_t call = waiting.item.call();
    Count(waiting.bytes);
    if (!is_bulk && !bulk_of_.contains(call)) return urgent_.push_back(std::move(waiting));
    bulk_.push_back(std::move(waiting));
    bulk_of_[call].push_back(std::prev(bulk_.end()));
  }

  void Count(int64_t bytes) {
    bytes_ += bytes;
    if (share_ != nullptr) share_->Add(bytes);
  }

  bool Fits(const Waiting& next) const {
    return being_written_ == 0 || being_written_ + next.bytes <= kMostMessageBytes;
  }

  // It was passed often enough, and what waits of its call would not be passed by it.
  bool IsBulksTurn() const {
    if (bulk_.empty() || num_passed_ < kMostPassed) return false;
    const uint64_t call = bulk_.front().item.call();
    return std::none_of(urgent_.begin(), urgent_.end(),
                        [call](const Waiting& one) { return one.item.call() == call; });
  }

  void Take(Waiting& next, Message& message) {
    being_written_ += next.bytes;
    *message.add_calls() = std::move(next.item);
  }

  void TakeBulk(Message& message) {
    const auto of_call = bulk_of_.find(bulk_.front().item.call());
    of_call->second.erase(of_call->second.begin());
    if (of_call->second.empty()) bulk_of_.erase(of_call);
    Take(bulk_.front(), message);
    bulk_.pop_front();
    took_bulk_ = true;
  }

  SessionMemory::Share* const share_;
  uint64_t number_ = 0;
  std::deque<Waiting> urgent_;
  Bulk bulk_;
  absl::flat_hash_map<uint64_t, std::vector<typename Bulk::iterator>> bulk_of_;  // By call.
  int64_t bytes_ = 0;
  int64_t being_written_ = 0;  // Of bytes_.
  int num_passed_ = 0;
  bool took_bulk_ = false;  // By this message.
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
