#pragma once

#include <sys/uio.h>

#include <array>
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

  // A rank of another process, as its connection has proved.
  struct Sender {
    Incarnation incarnation = 0;
    RankPlace place;
    bool operator==(const Sender&) const = default;
  };

  // `sink` replaces options.sink; `counters` must outlive the ledger.
  ReceiveLedger(const TransportOptions& options, CounterBoard* counters,
                KvTransport::EventSink sink);

  // A ticket that is known already is a counted no-op; impossible blocks or ranges end it at once
  // with INVALID_ARGUMENT.
  void Expect(ExpectArgs args);

  // Before one payload byte is read. A bad frame of a rightful sender ends the ticket; one of
  // another sender does not. Rightful is each rank of the expected process that has heads for this
  // one, and only for them.
  Admission Admit(const FrameHeader& header, const Sender& sender);

  // The admitted payload arrived whole, its checksum agrees, and it is written or its write is
  // launched.
  void Commit(const FrameHeader& header, const Sender& sender);

  // kNone: noted; with the last sender's the ticket has ended OK. Otherwise the code to answer; the
  // rightful sender's ticket has ended.
  AbortCode Finish(TicketId ticket, const Sender& sender, const FinalBody& body);

  // Ends the ticket if it exists (and belongs to the sender, if one is given).
  bool Fail(TicketId ticket, const absl::Status& status);
  bool Fail(TicketId ticket, const absl::Status& status, const Sender& sender);

  // The sender's connection is gone: tickets of which it has sent anything end, the others stay.
  void SenderLost(const Sender& sender, const absl::Status& status);

  void EndAll(const absl::Status& status);

  // The sender of a live ticket, 0 when unknown.
  Incarnation SenderOf(TicketId ticket) const;

  // Payload bytes of the ticket from this rank that need not be sent again, duplicates included:
  // what an acknowledgement tells it. Without those of kCarried.
  int64_t AcceptedBytes(TicketId ticket, const Sender& sender) const;

 private:
  struct Ticket {
    ExpectArgs args;
    std::vector<BlockId> blocks;
    Coverage coverage;
    bool begun = false;
    int64_t bytes = 0;            // Written and verified.
    int32_t sender_size = 0;      // Ranks of the sender; 0 until one of them sends.
    uint32_t seen = 0;            // Bit p: rank p has sent something.
    uint32_t finals = 0;          // Bit p: and its final frame.
    TokenOutput first;            // Of the final frames so far.
    std::array<int64_t, kMaxRanks> accepted{};  // Bytes of each rank, duplicates included.
  };
  using Tickets = std::map<TicketId, Ticket>;

  absl::Status CheckArgs(const ExpectArgs& args) const;
  // The ranks that must send for it, if the sender has so many.
  uint32_t Senders(int32_t sender_size) const;
  bool IsSender(const Ticket& ticket, const Sender& sender) const;
  static void Note(const Sender& sender, Ticket* ticket);
  static void NoteAccepted(const FrameHeader& header, const Sender& sender, Ticket* ticket);
  AbortCode Judge(const Ticket& ticket, const FrameHeader& header, const Sender& sender) const;
  AbortCode JudgeFinal(const Ticket& ticket, const Sender& sender, const FinalBody& body) const;
  void End(Tickets::iterator it, absl::Status status, TokenOutput first = {});

  const KvCache& cache_;
  const BlockEpochs& epochs_;
  const RankPlace place_;
  const int32_t kv_heads_;
  const int32_t first_head_;
  const bool staged_;
  CounterBoard* counters_;
  KvTransport::EventSink sink_;
  Tickets tickets_;
};

}  // namespace baton
