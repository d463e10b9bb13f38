#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/node/inbox.h"
#include "common/node/node.h"
#include "common/node/worker_mail.h"
#include "common/rpc/session_memory.h"

namespace baton {

class ClusterTls;

struct WorkerServerOptions {
  HelloInfo hello;  // Its role decides which service is offered: Prefill or Decode.
  std::string host = "127.0.0.1";
  int port = 0;                     // 0 = any free port.
  // Where a decode worker takes K/V. Routers before protocol 3 carry all of it as one endpoint; if
  // that is too long for them, their Hello is refused.
  std::vector<DataRank> data_ranks;
  bool serves_sessions = true;      // False: each call of a router goes for itself.
  const ClusterTls* tls = nullptr;  // Null: plaintext. Outlives the server.
  // The node's latest snapshot, from any thread; must not wait.
  std::function<WorkerStatus()> status;
  // How long the node has been in its turn; any thread. Empty: its life is not looked at.
  std::function<Duration()> in_turn_for;
  int max_streams_per_connection = 8192;  // One router has one connection: its calls in flight.
  int max_open_calls = 16384;             // Of all connections; more are refused.
  int max_watchers = 256;
  // Of all sessions together, in bytes; one may have a quarter (SessionMemory).
  int64_t max_unsent_bytes = kMostUnsentBytes;
  int64_t max_open_bytes = kMostOpenBytes;
};

// The gRPC side of a worker: turns calls into mail for its node and the node's answers into events
// on the calls. Handlers validate, convert and offer; they never wait. A call that is cancelled,
// passes its deadline (in a session the router looks after that) or
// loses its connection becomes CallBroken, exactly once, unless the node
// closed it before. Also answers Hello, Watch, Drain, Audit, health and reflection.
// Threads: everything may be called from any thread.
class WorkerServer : public WorkerOutbox {
 public:
  // Serves the calls of the inbox's kind of worker; what it points to outlives this.
  WorkerServer(WorkerServerOptions options, WorkerInbox inbox);
  ~WorkerServer() override;  // Shuts down at once.

  // Binds and serves. UNAVAILABLE with setting and cure if the port cannot be had.
  absl::Status Start();

  // The port that was bound; after Start.
  int port() const;

  // Queue for the call and return; tokens in a call's queue are bounded by its max_tokens. What
  // goes by a session waits for Flush.
  void Emit(CallId call, WorkerEvent event) override;
  void Close(CallId call, absl::Status status) override;

  // At the end of each of the node's turns: what it had to say goes to each router in one message.
  void Flush();

  // Ends all streams; calls still open after `grace` are broken. Idempotent.
  void Shutdown(Duration grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
