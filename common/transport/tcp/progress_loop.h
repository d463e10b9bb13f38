#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/kv_transport.h"
#include "common/transport/receive_ledger.h"
#include "common/transport/tcp/call_queue.h"
#include "common/transport/tcp/incoming_link.h"
#include "common/transport/tcp/outgoing_link.h"
#include "common/transport/tcp/socket.h"
#include "common/transport/tcp/tcp_options.h"
#include "common/transport/transport_counters.h"

namespace baton {

// All of the socket transport but its thread: listener, connections, ledger, timers. One thread at
// a time.
class ProgressLoop {
 public:
  // Options, calls and counters outlive the loop.
  static absl::StatusOr<std::unique_ptr<ProgressLoop>> Create(const TcpOptions& options,
                                                              FileDescriptor listener,
                                                              CallQueue* calls,
                                                              CounterBoard* counters);

  // Waits for sockets, calls or the next deadline, and handles what is ready. False when the queue
  // was stopped: every ticket has ended with CANCELLED and everything is closed.
  bool Poll();

 private:
  struct Entry {
    std::unique_ptr<Link> link;
    IncomingLink* incoming = nullptr;  // One of the two is link.get().
    OutgoingLink* outgoing = nullptr;
    uint32_t interest = 0;
    absl::Status closing;  // Not OK: to be closed at the end of this turn.
  };
  using Links = std::map<uint64_t, Entry>;  // By an id that grows, so the oldest comes first.

  ProgressLoop(const TcpOptions& options, FileDescriptor listener, CallQueue* calls,
               CounterBoard* counters);

  void ExecuteCalls();
  void Execute(TransportCall call);
  void Shutdown();

  void Start(StartArgs args);
  absl::StatusOr<OutgoingLink*> LinkTo(const StartArgs& args);
  OutgoingLink* LinkOf(TicketId ticket);
  void Abort(TicketId ticket);
  bool RoomForOutgoing();

  void AcceptConnections();
  void AddIncoming(FileDescriptor socket);
  void OnAuthenticated(IncomingLink* link);
  void OnTicketEvent(TransferEvent event);

  bool Watch(uint64_t id, Entry* entry, uint32_t interest);
  void ServeLink(uint64_t id, uint32_t events);
  void RunTimers();
  void PumpAll();
  void CloseDead();
  int WaitMs() const;
  Duration Scaled(Duration d) const;

  const TcpOptions& options_;
  CallQueue* const calls_;
  CounterBoard* const counters_;
  FileDescriptor listener_;
  FileDescriptor epoll_;
  std::vector<std::byte> scratch_;
  ReceiveLedger ledger_;
  Links links_;
  uint64_t next_id_ = 2;
  std::map<TicketId, OutgoingLink*> sending_;  // Live Starts.
  Time now_{};
  Time listen_again_ = kNever;  // While out of descriptors.
  bool stopped_ = false;
};

}  // namespace baton
