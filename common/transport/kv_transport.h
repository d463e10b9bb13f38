#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/sampling.h"
#include "common/kv_cache/block_types.h"
#include "common/kv_cache/kv_heads.h"
#include "common/transport/rank_legs.h"

namespace baton {

// 256-bit key of one (prefill incarnation, decode incarnation) pair; never logged.
using PairKey = std::array<uint8_t, 32>;

// What both sides must agree on before KV may be decoded from; compared in the final frame.
struct HandoffDigests {
  uint64_t layout = 0;  // LayoutDigest.
  uint64_t model = 0;   // Config, tensor table and weight bytes.
  uint64_t tokens = 0;  // Digest of the token ids [0, num_tokens).
  bool operator==(const HandoffDigests&) const = default;
};

// Where a rank of a worker takes K/V from others, and the heads that it takes.
struct DataRank {
  std::string endpoint;  // "host:port" of its data listener.
  HeadRange heads;
  bool operator==(const DataRank&) const = default;
};

// The receiving side of one handoff.
struct ExpectArgs {
  TicketId ticket;
  Incarnation sender = 0;        // Only a connection authenticated for this incarnation may write.
  // Of the whole sequence, a row for each group of layers, one after the other (BlockTable::Flat);
  // block i of a row holds tokens [i*B, (i+1)*B). Those that end before what comes are not looked
  // at.
  std::vector<BlockRef> blocks;
  int32_t first_token = 0;       // Tokens before it are here already (pinned prefix blocks).
  int32_t num_tokens = 0;        // Prompt length: of every layer [FirstSent, num_tokens) must come.
  HandoffDigests digests;
};

// The sending side of one handoff. The blocks from FirstSent of their layers on must stay readable
// until the ticket's kEnded; the others are not looked at.
struct StartArgs {
  TicketId ticket;
  std::string endpoint;  // "host:port" of the receiver's data listener.
  RankPlace receiver_place;  // Whose it is.
  // Instead of these two, for RankedTransport: each rank of the receiver.
  std::vector<DataRank> receivers;
  PairKey key{};
  Incarnation sender = 0;  // This process.
  Incarnation receiver = 0;
  std::vector<BlockId> blocks;  // The sender's own, as those of ExpectArgs.
  int32_t first_token = 0;
  int32_t num_tokens = 0;
};

// Tokens [first_token, first_token + num_tokens) of one layer (K and V) are written on the sender.
struct PushArgs {
  TicketId ticket;
  int32_t layer = 0;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
};

// What closes a handoff after its last push.
struct FinishArgs {
  TicketId ticket;
  HandoffDigests digests;
  TokenOutput first;  // The token the prefill worker sampled; the decode worker goes on from it.
};

// What a transport tells its node, as mail.
struct TransferEvent {
  enum class Kind : uint8_t {
    kBegun,  // Receiver only: the first frame was accepted; at most once per Expect.
    kEnded,  // Exactly once per Expect and per Start: no byte of the ticket's blocks is read or
             // written by the transport after it. OK: every layer, length, checksum and digest was
             // verified by the receiver.
  };
  Kind kind = Kind::kEnded;
  TicketId ticket;
  bool receiver = false;  // Which side of the ticket this event belongs to.
  absl::Status status;
  TokenOutput first;  // Receiver, kEnded with OK.
  int64_t bytes = 0;  // Payload moved, at kEnded.
};

// A transfer to or from one rank of a worker that has not ended.
struct OpenLeg {
  TicketId ticket;   // Of the handoff.
  int32_t rank = 0;  // Of this worker.
  bool operator==(const OpenLeg&) const = default;
};

// Moves K/V bytes of agreed handoffs between block pools. Never allocates or frees blocks. All
// methods return at once and may be called from one thread (the node's); results arrive at the
// sink, possibly from another thread. One order per pair: the order of the calls here.
// Implementations: loopback.h (one process), tcp/ (sockets), tests/sim (timed and faulty).
class KvTransport {
 public:
  using EventSink = std::function<void(TransferEvent)>;

  virtual ~KvTransport() = default;

  // Receiver: from now on frames that carry the ticket may be written to these blocks.
  virtual void Expect(ExpectArgs args) = 0;

  // Sender: opens the handoff. Pushes may follow at once; they are queued until it is accepted.
  virtual void Start(StartArgs args) = 0;

  // Sender: more of the sequence is ready to be read. Ranges of a layer do not overlap.
  virtual void Push(PushArgs args) = 0;

  // Sender: everything was pushed; ask the receiver to verify.
  virtual void Finish(FinishArgs args) = 0;

  // Either side: stop as soon as possible; kEnded follows (CANCELLED unless it ended before).
  // An unknown or ended ticket is a counted no-op.
  virtual void Abort(TicketId ticket) = 0;

  // For the operator, of a worker's transport: what its ranks are at. Any thread.
  virtual std::vector<OpenLeg> OpenLegs() const { return {}; }
};

}  // namespace baton
