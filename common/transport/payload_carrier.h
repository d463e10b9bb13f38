#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/transport/block_stager.h"
#include "common/transport/transfer_plan.h"
#include "common/transport/wire.h"

namespace baton {

// A data frame that goes beside the connection. Its header's type is kCarried.
struct CarriedFrame {
  FrameHeader header;             // Ticket, range, payload_bytes.
  std::vector<PoolPiece> pieces;  // Of the sender's pool, in payload order.
};

// Carries payload from a device's pool to another's beside the connection of two ranks, which goes
// on to carry everything else, and the payload too where this cannot. The two carriers agree by
// words over the connection. One thread at a time, the transport's; nothing here waits.
class PayloadCarrier {
 public:
  // One end of an authenticated connection, told from within the carrier's methods.
  class End {
   public:
    virtual ~End() = default;
    // To the carrier at the other end, in order.
    virtual void Say(std::vector<std::byte> word) = 0;
    // Sender: the receiver has these, or needs them no more.
    virtual void OnCarried(std::span<const CarriedFrame> frames) = 0;
    // Sender: whether these have arrived is not known: they are to go over the connection.
    virtual void OnLost(std::span<const CarriedFrame> frames) = 0;
    // Receiver, of a frame that is announced, and again before it is written: where. None: it must
    // not be.
    virtual std::optional<std::vector<PoolPiece>> Admit(const FrameHeader& header) = 0;
    // Receiver: its write is launched.
    virtual void Commit(const FrameHeader& header) = 0;
    // Receiver: its bytes are not those that were sent.
    virtual void OnSpoiled(const FrameHeader& header) = 0;
  };

  struct Peer {
    std::string name;       // For logs.
    uint64_t version = 0;   // As it told.
    bool receives = false;  // This end does.
  };

  // Of one Carry, at either end.
  struct Limits {
    int64_t bytes = 0;
    size_t frames = 0;
    size_t pieces = 0;
  };

  enum class Room : uint8_t {
    kNone,  // Frames go over the connection.
    kFull,  // They wait.
    kFree,
  };

  using LinkId = int;

  virtual ~PayloadCarrier() = default;

  // Ends with the same one can carry.
  virtual uint64_t version() const = 0;

  virtual LinkId Open(End* end, const Peer& peer) = 0;
  // The end is told of nothing any more.
  virtual void Close(LinkId link) = 0;
  // INVALID_ARGUMENT: no word of ours; the connection is to be closed.
  virtual absl::Status OnWord(LinkId link, std::span<const std::byte> word) = 0;

  virtual Room RoomFor(LinkId link) const = 0;
  // What fits at both ends. Asked for where there is room: it holds until there is none.
  virtual Limits LimitsFor(LinkId link) const = 0;
  // Where there is room, and within the limits.
  virtual void Carry(LinkId link, std::vector<CarriedFrame> frames) = 0;

  // Nothing is launched for it any more. What was launched counts as Busy until it has landed.
  virtual void OnTicketEnded(const BlockStager::Work& work) = 0;
  virtual int Busy(const BlockStager::Work& work) const = 0;

  // To be called each turn; in a moment, while `busy`.
  virtual void Turn(Time now) = 0;
  virtual bool busy() const = 0;
  virtual Time NextDeadline() const = 0;

  // All links are closed. Returns when nothing is launched any more, or ends the process.
  virtual void Shutdown() = 0;
};

}  // namespace baton
