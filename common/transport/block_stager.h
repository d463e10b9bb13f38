#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/transport/transfer_plan.h"

namespace baton {

// The bytes that a gather brings.
struct GatheredBytes {
  bool done = false;  // `bytes` is all of them.
  std::vector<std::byte> bytes;
};

// Copies between a pool that sockets cannot touch (a device's memory) and plain bytes. A copy is
// launched, lands some time later, and is *known* to have landed from the Collect on that finds it
// done. What is launched lands, or the process ends: when the device fails, or has not ended a copy
// within a limit of which Collect keeps count. There is no third case, and nothing takes a copy
// back. Each copy has a slot from its launch to that Collect. A slot never waits for a peer:
// bytes on their way to or from a socket are in memory of the connection. One thread at a time.
//
// The blocks of a launched copy must not change owner before Busy says 0. A gather may be launched
// once the host knows that what it reads was written; a device needs no order of its own for that.
class BlockStager {
 public:
  // On whose behalf: one side of one ticket.
  struct Work {
    TicketId ticket;
    bool receiver = false;
    auto operator<=>(const Work&) const = default;
  };

  virtual ~BlockStager() = default;

  // Launches a read of these pieces, in their order. Null: no slot is free. Who wants the bytes no
  // more lets go of the pointer; the copy lands all the same.
  virtual std::shared_ptr<GatheredBytes> Gather(const Work& work,
                                                std::span<const PoolPiece> pieces) = 0;

  // Launches a write of `payload` to these pieces, all of them; it has been copied when this
  // returns. False: no slot is free.
  virtual bool Scatter(const Work& work, std::span<const PoolPiece> pieces,
                       std::span<const std::byte> payload) = 0;

  // Finds out which copies have landed: their slots are free, gathered bytes are there. Called
  // again and again while there are any.
  virtual void Collect() = 0;

  // Launched and not collected.
  virtual int Busy(const Work& work) const = 0;
  virtual bool idle() const = 0;

  // Returns when everything that was launched has landed and is collected; ends the process if
  // that takes too long.
  virtual void AwaitQuiet() = 0;
};

}  // namespace baton
