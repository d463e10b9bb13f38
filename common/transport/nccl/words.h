#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/nccl/batch_actions.h"
#include "common/transport/nccl/nccl_abi.h"
#include "common/transport/wire.h"

namespace baton::nccl {

// In PayloadCarrier::version, above the number of the library. To be raised with each change of the
// words: builds that do not understand each other use their connections. 0: of kUp without limits.
inline constexpr uint32_t kWordsVersion = 1;
uint64_t CarrierVersion(int library_version);
int LibraryVersionOf(uint64_t carrier_version);
uint32_t WordsVersionOf(uint64_t carrier_version);

// What a batch may be: of one rank, whose GPU may have less memory than its peer's, or of a pair.
struct BatchLimits {
  int64_t bytes = 0;   // Of a slot.
  int64_t pieces = 0;  // Of a launch.
  bool operator==(const BatchLimits&) const = default;
};
// Neither nothing nor more than any GPU would give to it.
bool IsLimits(const BatchLimits& limits);
BatchLimits SmallerOf(const BatchLimits& a, const BatchLimits& b);

// What two carriers say to each other over the authenticated connection of their ranks, the body of
// a kCarried frame. P is the prefill rank, D the decode rank.
struct Word {
  // Numbers are part of the wire.
  enum class Kind : uint8_t {
    kId = 1,   // D: make a communicator with me by this id.
    kUp,       // Both: mine is there, and batches of these limits fit here.
    kDead,     // Both: forget that communicator.
    kNever,    // Both: that, and there will be no other.
    kAlive,    // D: batches wait here.
    kAnnounce,  // P, as batch_actions.h has it, to
    kGrant,
    kRevoke,
    kReady,
    kPosted,
    kRefuse,
    kAck,
  };
  Kind kind = Kind::kAlive;
  uint32_t epoch = 0;  // Of the communicator, counted by D for each connection, from 1.
  uint64_t batch = 0;  // kAnnounce and what comes behind it.
  uint32_t grant = 0;  // kGrant, kRevoke, kReady, kPosted.
  UniqueId id;         // kId.
  BatchLimits limits;  // kUp.
  std::vector<FrameHeader> frames;  // kAnnounce: ticket, range and payload_bytes.
  std::vector<uint64_t> sums;       // kReady.
  FrameSet arrived;                 // kAck.
};

// At most kMaxBatchFrames frames and sums, which is at most kMaxWordBytes.
std::vector<std::byte> EncodeWord(const Word& word);

// INVALID_ARGUMENT: an unknown kind, a wrong size, limits that are none, or a frame without a range
// or bytes.
absl::StatusOr<Word> DecodeWord(std::span<const std::byte> bytes);

}  // namespace baton::nccl
