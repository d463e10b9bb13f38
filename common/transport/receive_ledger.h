#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <vector>

#include "common/transport/coverage.h"
#include "common/transport/transport_counters.h"
#include "common/transport/transport_options.h"
#include "common/transport/wire.h"

namespace baton {

// The receiver's side of every ticket, without the sockets: who may write what where, what has
// arrived, and the events. Shared by all transports. One thread (or one lock) at a time. Every
// ending goes through `sink`: kEnded is sent once, the ticket is forgotten before, and afterwards
// no frame of it is admitted; whoever is still filling its memory must stop within the sink call.
class ReceiveLedger {
 public:
  // What to do with the payload of a data frame.
  struct Admission {
    enum class Kind : uint8_t { kWrite, kDuplicate, kRefused };
    Kind kind = Kind::kRefused;
    AbortCode code = AbortCode::kNone;  // kRefused: to be answered.
    std::vector<iovec> memory;          // kWrite: in payload order.
    std::vector<PoolPiece> pieces;      // Instead, of a pool with a stager.
  };

  // `sink` replaces options.sink; `counters` must outlive the ledger.
  ReceiveLedger(const TransportOptions& options, CounterBoard* counters,
                KvTransport::EventSink sink);

  // A ticket that is known already is a counted no-op; impossible blocks or ranges end it at once
  // with INVALID_ARGUMENT.
  void Expect(ExpectArgs args);

  // Before one payload byte is read. A bad frame of the rightful sender ends the ticket; one of
  // another sender does not.
  Admission Admit(const FrameHeader& header, Incarnation sender);

  // The admitted payload arrived whole, its checksum agrees, and it is written or its write is
  // launched.
  void Commit(const FrameHeader& header);

  // kNone: verified, the ticket ended OK. Otherwise the code to answer; the rightful sender's
  // ticket has ended.
  AbortCode Finish(TicketId ticket, Incarnation sender, const FinalBody& body);

  // Ends the ticket if it exists (and belongs to the sender, if one is given).
  bool Fail(TicketId ticket, const absl::Status& status, Incarnation sender = 0);

  // The sender's connection is gone: tickets that had begun end, the others stay.
  void SenderLost(Incarnation sender, const absl::Status& status);

  void EndAll(const absl::Status& status);

  // The sender of a live ticket, 0 when unknown.
  Incarnation SenderOf(TicketId ticket) const;

  // Payload bytes of the ticket that need not be sent again, duplicates included: what an
  // acknowledgement tells.
  int64_t AcceptedBytes(TicketId ticket) const;

 private:
  struct Ticket {
    ExpectArgs args;
    std::vector<BlockId> blocks;
    Coverage coverage;
    bool begun = false;
    int64_t bytes = 0;            // Written and verified.
    int64_t duplicate_bytes = 0;  // Of ranges that came again.
  };
  using Tickets = std::map<TicketId, Ticket>;

  absl::Status CheckArgs(const ExpectArgs& args) const;
  AbortCode Judge(const Ticket& ticket, const FrameHeader& header) const;
  void End(Tickets::iterator it, absl::Status status, TokenOutput first = {});

  const KvCache& cache_;
  const BlockEpochs& epochs_;
  const int32_t first_head_;
  const bool staged_;
  CounterBoard* counters_;
  KvTransport::EventSink sink_;
  Tickets tickets_;
};

}  // namespace baton
