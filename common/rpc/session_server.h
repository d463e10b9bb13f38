#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/session.pb.h"
#include "common/base/ids.h"
#include "common/rpc/session.h"
#include "common/rpc/silence.h"

namespace baton {

// The worker's end of a session: all calls of one router over one stream. A call is known by its
// number in the session. Thread-safe, nothing waits. Owns itself until gRPC says OnDone; others
// hold it by shared_ptr.
class SessionServer : public grpc::ServerBidiReactor<v1::SessionFrame, v1::SessionFrame> {
 public:
  struct Hooks {
    // What the router asks, in order, cancels apart. An error ends the call that it is about.
    std::function<absl::Status(uint64_t call, const v1::CallAsked& asked)> on_asked;
    // Once for each call that was taken, unless the worker ended it; alone, or as all others with
    // the session.
    std::function<void(uint64_t call, bool session_ended)> on_broken;
    // The router says, before it opens a call, that its session of this key has ended.
    std::function<void(uint32_t key)> on_replaced;
    // That was said of this key: nothing is taken of its session any more.
    std::function<bool(uint32_t key)> has_ended;
    std::function<void()> on_done;  // Last.
  };
  struct Options {
    Incarnation incarnation = 0;  // Of this worker.
    Hooks hooks;
    // What the sessions of this worker hold for routers that do not read, and of calls that were
    // opened and of which nothing was told yet.
    std::shared_ptr<SessionMemory> unsent;
    std::shared_ptr<SessionMemory> opens;
  };

  static std::shared_ptr<SessionServer> Create(grpc::CallbackServerContext* context,
                                               Options options);

  // Both wait for Flush. No-ops for calls that are not open.
  void Tell(uint64_t call, v1::CallTold told);
  void End(uint64_t call, const absl::Status& status);
  // Sends what waits, as one message unless that is too large: as soon as the last one is written.
  void Flush();

  size_t num_calls() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Once each kBeatInterval: a sign of life, if the node lives, and the session's end if the router
  // has given none.
  void Beat(bool node_lives);

  // Takes no more calls, and ends when none is left.
  void Close(const absl::Status& status);

  // Ends the session as if the router had cancelled it.
  void Abandon();
  // The same, if that is its key: when this returns the node has been told that its calls are
  // broken, and is asked nothing more of it.
  void AbandonIf(uint32_t key);
  // The same, unless `is_trusted` is true of who has called.
  void AbandonUnless(const std::function<bool(const grpc::AuthContext&)>& is_trusted);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  SessionServer(grpc::CallbackServerContext* context, Options options)
      : context_(context),
        options_(std::move(options)),
        unsent_(options_.unsent),
        opens_(options_.opens),
        output_(&unsent_) {}

  absl::Status TakeMessage();
  absl::Status TakeFirst(const v1::SessionOpen& open);
  absl::Status TakeCalls(const v1::ToWorker& message);
  void BreakAll();
  absl::Status TakeAsked(const v1::CallAsked& asked);
  absl::Status OpenCall(const v1::CallAsked& asked);
  // Room for it; else why not.
  absl::Status Weigh(const v1::CallAsked& asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if it was open.
  bool Forget(uint64_t call) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Erase(uint64_t call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its request is not held for it any more: it is being computed, or has ended.
  void GiveBack(int64_t& weight) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same; the router is told.
  bool EndCall(uint64_t call, const absl::Status& status);
  // Ends it for the node too.
  void Break(uint64_t call, const absl::Status& status);
  // False: more of the call waits than may.
  bool Queue(v1::CallTold told) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing more is read or said.
  void Finish(absl::Status status);
  // Starts the next operation, outside the lock because gRPC may call back from within.
  void Advance();

  grpc::CallbackServerContext* const context_;  // gRPC's, until OnDone has returned.
  std::recursive_mutex context_mutex_;
  bool has_context_ = true;  // Under context_mutex_.
  const Options options_;
  SessionMemory::Share unsent_;
  SessionMemory::Share opens_;
  // While the node is being told what a message says, or that all calls are broken.
  absl::Mutex taking_ ABSL_ACQUIRED_BEFORE(mutex_);
  bool is_over_ ABSL_GUARDED_BY(taking_) = false;
  mutable absl::Mutex mutex_;
  // What of each counts among opens_.
  absl::flat_hash_map<uint64_t, int64_t> open_ ABSL_GUARDED_BY(mutex_);
  SessionOutput<v1::ToRouter, v1::CallTold> output_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint32_t> key_ ABSL_GUARDED_BY(mutex_);  // Once the first message has come.
  bool says_alive_ ABSL_GUARDED_BY(mutex_) = false;      // If nothing else is to be said.
  bool is_due_ ABSL_GUARDED_BY(mutex_) = false;  // What waits is to be sent.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);    // Once no call is left.
  std::optional<absl::Status> finishing_ ABSL_GUARDED_BY(mutex_);  // Once nothing is written.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  Silence silence_;
  // The reader's alone.
  SessionInput input_;
  uint64_t last_call_ = 0;
  bool has_first_ = false;
  v1::SessionFrame received_;  // gRPC's between StartRead and OnReadDone.
  v1::SessionFrame sent_;      // gRPC's while writing_.
  std::shared_ptr<SessionServer> self_;
};

}  // namespace baton
