#pragma once

#include <bitset>
#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/check.h"

// What sending_batches.h and receiving_batches.h have in common. A batch is a list of frames that
// cross in one NCCL message, from a staging slot of the prefill rank into one of the decode rank;
// everything that is said about it goes over the authenticated TCP link of the two:
//   announce -> grant -> (gather) ready -> posted -> (send, receive, sum, scatter) ack
// or, up to posted: -> refuse. A grant that is not used may be revoked, and given again later.
namespace baton::nccl {

// One communicator: this rank, a rank of another process, and how many there were before. Its id is
// never used again.
using PairId = int;

inline constexpr int kMaxBatchFrames = 512;
// Batches of a pair that are announced and not over: each has a slot, or will have.
inline constexpr int kBatchesPerPair = 2;

using FrameSet = std::bitset<kMaxBatchFrames>;

struct BatchKey {
  PairId pair = 0;
  uint64_t batch = 0;  // From 1, ascending by one.
  auto operator<=>(const BatchKey&) const = default;
};

// What is to be done next, in this order.
struct Action {
  enum class Kind : uint8_t {
    kAnnounce, kReady,                         // Say so to the decode rank.
    kGrant, kRefuse, kRevoke, kPosted, kAck,   // Say so to the prefill rank.
    kGather, kSend, kReceive, kSum, kScatter,  // Launch; its event is to be told.
    kSpoiled,  // The sums of `frames` are wrong: their tickets are to fail.
    kEnded,    // `frames` have arrived; the others need not.
    kLost,     // The pair died before the ack: every frame is to go over TCP.
    kCondemn,  // The peer said what it must not say: the pair is dead, to be aborted and told so.
  };
  Kind kind = Kind::kCondemn;
  BatchKey key;
  uint32_t grant = 0;  // kGrant, kRevoke, kReady, kPosted.
  int slot = -1;       // kGather, kSend, kReceive, kSum, kScatter.
  FrameSet frames;     // kAck, kScatter, kSpoiled, kEnded.
  std::vector<uint64_t> sums;  // kReady.
};
using Actions = std::vector<Action>;

// Staging slots of a rank, the only memory that NCCL touches. A slot is free again by events of
// this process only, never by a peer's word; one that NCCL may touch for ever is leaked.
class StagingSlots {
 public:
  explicit StagingSlots(int count) : states_(count, State::kFree) {}

  // -1: none is free.
  int Take() {
    for (int i = 0; i < static_cast<int>(states_.size()); ++i) {
      if (states_[i] != State::kFree) continue;
      states_[i] = State::kTaken;
      return i;
    }
    return -1;
  }
  void Free(int slot) { GiveBack(slot, State::kFree); }
  void Leak(int slot) { GiveBack(slot, State::kLeaked); }

  int free() const { return Count(State::kFree); }
  int held() const { return Count(State::kTaken); }
  int leaked() const { return Count(State::kLeaked); }
  int size() const { return static_cast<int>(states_.size()); }

 private:
  enum class State : uint8_t { kFree, kTaken, kLeaked };
  void GiveBack(int slot, State state) {
    BATON_CHECK(std::exchange(states_[slot], state) == State::kTaken);
  }
  int Count(State state) const {
    int count = 0;
    for (const State s : states_) count += s == state;
    return count;
  }
  std::vector<State> states_;
};

// The first `count` frames of a batch.
inline FrameSet FirstFrames(int count) {
  FrameSet all;
  for (int i = 0; i < count; ++i) all.set(i);
  return all;
}

}  // namespace baton::nccl
