#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/kv_transport.h"
#include "common/transport/receive_ledger.h"
#include "common/transport/tcp/byte_stream.h"
#include "common/transport/tcp/call_queue.h"
#include "common/transport/tcp/incoming_link.h"
#include "common/transport/tcp/outgoing_link.h"
#include "common/transport/tcp/tcp_options.h"
#include "common/transport/tcp/tls_stream.h"
#include "common/transport/transport_counters.h"

namespace baton {

// Where connections come from and who says that one is ready: sockets, or a simulated network.
class Network {
 public:
  virtual ~Network() = default;
  // Starts to connect, without waiting.
  virtual absl::StatusOr<std::unique_ptr<ByteStream>> Connect(const std::string& endpoint) = 0;
  // When Serve is to be called; about a stream that broke in any case.
  struct Interest {
    bool read = true;
    bool write = false;
    bool operator==(const Interest&) const = default;
  };
  // Serve is called for `id` whenever it can be read or written as the interest says. `is_new`: the
  // first call for it. Destruction of the stream ends it. False if it cannot be watched.
  virtual bool Watch(uint64_t id, ByteStream& stream, const Interest& interest, bool is_new) = 0;
  // Hands the calls that wait to Execute.
  virtual void ExecuteCalls() = 0;
};

// All of the socket transport but sockets, clock and thread: connections, ledger, timers. Each
// turn of its owner: BeginTurn, what happened, EndTurn. One thread at a time.
class Connections {
 public:
  // All outlive it. With TLS the system's library must have what it needs: see TlsStreamContext.
  Connections(const TcpOptions& options, CounterBoard* counters, Network* network);

  void BeginTurn(Time now) { now_ = now; }
  void Execute(TransportCall call);
  // A peer connected.
  void Accept(std::unique_ptr<ByteStream> stream);
  // The stream is ready, or broken: both.
  void Serve(uint64_t id, bool readable, bool writable);
  // Runs the timers that are due, collects what the stager has done and writes what all of this has
  // left to write; connections that failed are closed.
  void EndTurn();
  Time NextDeadline() const;
  // Stager or carrier are at work: the next turn is due in a moment.
  bool staging() const;

  // Every ticket ends with CANCELLED, everything is closed, and what Execute is given from then on
  // ends at once.
  void Shutdown();

 private:
  struct Entry {
    std::unique_ptr<Link> link;
    IncomingLink* incoming = nullptr;  // One of the two is link.get().
    OutgoingLink* outgoing = nullptr;
    std::optional<Network::Interest> watched;
    absl::Status closing;  // Not OK: to be closed at the end of this turn.
  };
  using Links = std::map<uint64_t, Entry>;  // By an id that grows, so the oldest comes first.

  void MakeTls();
  void Start(StartArgs args);
  absl::StatusOr<OutgoingLink*> LinkTo(const StartArgs& args);
  OutgoingLink* LinkOf(TicketId ticket);
  void Abort(TicketId ticket);
  bool RoomForOutgoing();
  void OnAuthenticated(IncomingLink* link);
  void OnTicketEvent(TransferEvent event);
  PayloadCarrier* carrier() const { return options_.transport.carrier; }
  // Something that was launched for it is under way.
  bool IsLanding(const BlockStager::Work& work) const;
  void CollectStaged();
  bool Watch(uint64_t id, Entry* entry, const Network::Interest& interest);
  void RunTimers();
  void PumpAll();
  void Pump(uint64_t id, Entry* entry);
  void CloseDead();
  Duration Scaled(Duration d) const;

  const TcpOptions& options_;
  CounterBoard* const counters_;
  Network* const network_;
  std::vector<std::byte> scratch_;
  std::unique_ptr<TlsStreamContext> tls_;  // Null: plaintext.
  ReceiveLedger ledger_;
  Links links_;
  uint64_t next_id_ = 2;  // The owner has names of its own below it.
  std::map<TicketId, OutgoingLink*> sending_;  // Live Starts.
  // kEnded of tickets whose blocks stager or carrier still read or write.
  std::map<BlockStager::Work, TransferEvent> parked_;
  uint64_t first_pumped_ = 0;  // Who waits longest for a slot of the stager.
  Time now_{};
  bool stopped_ = false;
};

}  // namespace baton
