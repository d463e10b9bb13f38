#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/node/inbox.h"
#include "common/node/router_mail.h"
#include "common/rpc/session_memory.h"

namespace baton {

class ClusterTls;

struct WorkerAddress {
  Role role = Role::kPrefill;  // What must answer there.
  std::string address;         // "host:port" of its gRPC server.
};

// Which workers a router has. Thread-safe; nothing waits.
class WorkerSet {
 public:
  virtual ~WorkerSet() = default;

  // One more, which is connected from now on. Returns its index; nothing when there are too many.
  virtual std::optional<int32_t> Add(const WorkerAddress& address) = 0;

  // One less, unless it is connected or was since `time`: then false.
  virtual bool RemoveIfSilentSince(int32_t worker, Time time) = 0;
};

struct WorkerLinksOptions {
  std::vector<WorkerAddress> workers;  // There from the start: their indices are those here.
  int max_workers = 1024;
  const ClusterTls* tls = nullptr;  // Null: plaintext. Outlives the links.
  int expiry_sweeps = 45;  // That calls may stay on a connection that was replaced, seconds.
  // Below the streams that a connection may have: a call that waits for one would seem silent.
  int max_calls_to_worker = 8000;
  // Of all sessions together; one may have a quarter (SessionMemory).
  int64_t max_unsent_bytes = kMostUnsentBytes;
  int64_t max_untaken_bytes = kMostUntakenBytes;
  // How long the node has been in its turn; any thread. Empty: its life is not looked at.
  std::function<Duration()> in_turn_for;
};

// The router's side of all calls to workers. Keeps one connection to each worker: Hello, then
// Watch, again and again with a back-off of 100 ms to 1 s, and mails WorkerUp, WorkerStatusChanged
// and WorkerDown; of those that come and go as a WorkerSet, first WorkerListed and last
// WorkerForgotten, once no call there is left: only then another may have the index. A call goes to
// the incarnation that said hello, or nowhere: a process that took over the address refuses it.
// Death by connection reset is noticed at once, a stopped process within 2.5 s.
// Threads: everything may be called from any thread; nothing waits but Stop.
class WorkerLinks : public WorkerSet {
 public:
  // `inbox` must outlive this.
  WorkerLinks(WorkerLinksOptions options, Inbox<RouterMail>* inbox);
  ~WorkerLinks() override;  // Stops.

  void Start();

  // After Start.
  std::optional<int32_t> Add(const WorkerAddress& address) override;
  bool RemoveIfSilentSince(int32_t worker, Time time) override;

  // Opens a call to the incarnation `request.worker` (FAILED_PRECONDITION if another one is
  // connected) under the node's own name for it. What becomes of it is mailed: WorkerEventReceived,
  // and last, exactly once, CallClosed. The deadline is request.timeout, looked
  // at each second where the worker serves sessions. A worker that sends what
  // cannot be is cut off with DATA_LOSS.
  void OpenDecode(CallId call, int32_t worker, const DecodeRequest& request);
  void OpenPrefill(CallId call, int32_t worker, const PrefillRequest& request);

  // About an open call, to its worker. If the worker refuses it the call closes with UNAVAILABLE;
  // so it does, call by call, where it cannot be told within 2 s. Unknown calls are a no-op.
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
