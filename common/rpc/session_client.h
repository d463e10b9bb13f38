#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/session.grpc.pb.h"
#include "common/base/time.h"
#include "common/node/message.h"
#include "common/node/router_mail.h"
#include "common/rpc/call_events.h"
#include "common/rpc/open_call.h"
#include "common/rpc/sampling_wire.h"
#include "common/rpc/session.h"
#include "common/rpc/silence.h"

namespace baton {

// The router's end of a session: all its calls to one worker over one stream. Owns itself from
// Start to its end, which comes once: the peer's, the connection's, or End's. Then every call that
// is open closes. Thread-safe; nothing waits.
class SessionClient : public grpc::ClientBidiReactor<v1::SessionFrame, v1::SessionFrame>,
                      public std::enable_shared_from_this<SessionClient> {
 public:
  struct Ended {
    CallId id = 0;
    CallEvents::End end;
  };
  using Told = std::variant<WorkerEventReceived, Ended>;
  struct Hooks {
    // What has come of calls, each with one end, after which nothing of it comes; of those that
    // have come together one vector. In order: from any thread, but from one at a time.
    std::function<void(std::vector<Told> told)> on_told;
    // The session has ended; `why` is the worker's own word, or what this end found wrong; empty if
    // neither.
    std::function<void(const std::string& why)> on_over;
    std::function<bool()> node_lives;   // Else no sign of life is given.
    std::function<void()> on_released;  // Last, when nothing of it is left with gRPC.
  };

  // What the sessions of this router hold together.
  struct Memory {
    std::shared_ptr<SessionMemory> unsent;   // For workers that do not read.
    std::shared_ptr<SessionMemory> untaken;  // Of what workers said, until the node has taken it.
  };

  SessionClient(const WireLimits& limits, Hooks hooks, Memory memory)
      : limits_(limits),
        hooks_(std::move(hooks)),
        memory_(std::move(memory)),
        unsent_(memory_.unsent),
        untaken_(std::make_shared<SessionMemory::Share>(memory_.untaken)),
        output_(&unsent_) {}

  // `ended`: keys of sessions with that worker that have ended.
  void Start(v1::Session::Stub* stub, Incarnation worker, const std::vector<uint32_t>& ended);
  uint32_t key() const { return key_; }  // Since Start.

  // A call that is not open yet. May be told to end already, which then does nothing.
  std::shared_ptr<OpenCall> MakeCall(CallId id);
  void Open(OpenCall* call, const DecodeRequest& request);
  void Open(OpenCall* call, const PrefillRequest& request);
  void Rebind(OpenCall* call, const RebindRequest& request);
  void Send(OpenCall* call, const SendRequest& request);

  // Ends it and all its calls, as UNAVAILABLE. `why`: what the worker has done, if anything.
  void End(const std::string& why = "");
  bool IsOver() const;
  // A message of the worker has come whole.
  bool HasHeard() const { return has_heard_; }

  // Once each kSweepInterval: a sign of life, and an end for calls whose time is over, or for the
  // session if the worker has given none.
  void Sweep();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  class Call;
  struct Entry {
    CallId id = 0;
    Time deadline{};
    std::unique_ptr<CallEvents> events;
  };

  template <typename Request>
  void OpenEntry(OpenCall* call, const Request& request, v1::CallAsked asked);
  void Ask(OpenCall* call, v1::CallAsked asked);
  // Closes the call here; the worker is told to let go of it.
  void Drop(Call* call, bool is_given_up);
  absl::Status TakeMessage();
  // `held`: counts what the message's mail takes.
  absl::Status TakeTold(const v1::CallTold& told, const std::shared_ptr<const void>& held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseEntry(uint64_t number, CallEvents::End end, bool tell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Outside the lock: starts the next write if there is one and none is on its way, and tells what
  // is to be told.
  void Advance();
  void Tell();

  const WireLimits limits_;
  const Hooks hooks_;
  const Memory memory_;
  SessionMemory::Share unsent_;
  const std::shared_ptr<SessionMemory::Share> untaken_;
  mutable absl::Mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);  // Until it has ended.
  std::string why_ ABSL_GUARDED_BY(mutex_);    // What the worker did wrong.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // No call is opened any more.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;        // gRPC waits for RemoveHold.
  bool says_alive_ ABSL_GUARDED_BY(mutex_) = false;  // If nothing else is to be said.
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // By number.
  std::vector<Told> told_ ABSL_GUARDED_BY(mutex_);                        // Not told yet.
  bool telling_ ABSL_GUARDED_BY(mutex_) = false;  // A thread is at it, and tells the rest too.
  SessionOutput<v1::ToWorker, v1::CallAsked> output_ ABSL_GUARDED_BY(mutex_);
  Silence silence_;
  std::atomic<bool> has_heard_ = false;
  uint32_t key_ = 0;           // Since Start.
  SessionInput input_;         // The reader's.
  v1::SessionFrame sent_;      // gRPC's while writing_.
  v1::SessionFrame received_;  // gRPC's between StartRead and OnReadDone.
  std::shared_ptr<SessionClient> self_;
};

}  // namespace baton
