#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/node/inbox.h"
#include "common/node/router_mail.h"

namespace baton {

class ClusterTls;

struct WorkerAddress {
  Role role = Role::kPrefill;  // What must answer there.
  std::string address;         // "host:port" of its gRPC server.
};

struct WorkerLinksOptions {
  std::vector<WorkerAddress> workers;  // The router's static list; its index names a worker.
  const ClusterTls* tls = nullptr;     // Null: plaintext. Outlives the links.
  // Below the streams that a connection may have: a call that waits for one would seem silent.
  int max_calls_to_worker = 8000;
};

// The router's side of all calls to workers. Keeps one connection to each worker of the list:
// Hello, then Watch, again and again with a back-off of 100 ms to 1 s, and mails WorkerUp,
// WorkerStatusChanged and WorkerDown. A call goes to the incarnation that said hello, or nowhere:
// a process that took over the address refuses it. Death by connection reset is noticed at once, a
// stopped process within 2.5 s.
// Threads: everything may be called from any thread; nothing waits but Stop.
class WorkerLinks {
 public:
  // `inbox` must outlive this.
  WorkerLinks(WorkerLinksOptions options, Inbox<RouterMail>* inbox);
  ~WorkerLinks();  // Stops.

  void Start();

  // Opens a call to the incarnation `request.worker` (FAILED_PRECONDITION if another one is
  // connected) under the node's own name for it. What becomes of it is mailed: WorkerEventReceived,
  // and last, exactly once, CallClosed. The deadline is request.timeout. A worker that sends what
  // cannot be is cut off with DATA_LOSS.
  void OpenDecode(CallId call, int32_t worker, const DecodeRequest& request);
  void OpenPrefill(CallId call, int32_t worker, const PrefillRequest& request);

  // About an open call, to its worker. If the worker cannot be told within 2 s the call closes with
  // UNAVAILABLE. Unknown calls are a no-op.
  void Rebind(CallId call, const RebindRequest& request);
  void Send(CallId call, const SendRequest& request);

  // CallClosed follows unless it was mailed already. Unknown calls are a no-op.
  void Cancel(CallId call);

  // Cancels everything and waits until gRPC has let go of it. Idempotent; mail stops.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
