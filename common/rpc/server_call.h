#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/connection.h"
#include "common/rpc/reaction_order.h"

namespace baton {

// One server-streaming call as its server sees it: a queue of events that gRPC drains one write at
// a time, then the status. Thread-safe. Owns itself until gRPC says OnDone; others hold it by
// shared_ptr. `on_broken` is called once, from a gRPC thread, if the call is cancelled, late or
// lost before Close; after it Write and Close are no-ops. `on_done` is called last.
template <typename Event>
class ServerCall : public grpc::ServerWriteReactor<Event> {
 public:
  struct Hooks {
    // The last change to an event, in the order of sending, never two at a time. False: it is not
    // sent.
    std::function<bool(Event* event)> seal;
    std::function<void()> on_broken;
    // Everything sent so far was written; from a gRPC thread.
    std::function<void()> on_idle;
    std::function<void()> on_done;
  };

  static std::shared_ptr<ServerCall> Create(grpc::CallbackServerContext* context, Hooks hooks) {
    std::shared_ptr<ServerCall> call(new ServerCall(context, std::move(hooks)));
    call->self_ = call;
    ReactionEnds(call.get());
    return call;
  }

  void Write(Event event) { Queue(std::move(event), /*only_if_idle=*/false); }

  // Writes it if nothing waits to be written.
  void WriteIfIdle(Event event) { Queue(std::move(event), /*only_if_idle=*/true); }

  // False while an event waits to be written.
  bool Idle() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return queue_.empty() && !writing_;
  }

  void Close(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (broken_ || closing_.has_value()) return;
      closing_ = std::move(status);
    }
    Advance();
  }

  // Ends the call as if the client had cancelled it.
  void Abandon() {
    const std::lock_guard lock(context_mutex_);
    if (has_context_) context_->TryCancel();  // May call OnCancel, even OnDone, from within.
  }

  // The same, unless `is_trusted` is true of who has called.
  void AbandonUnless(const std::function<bool(const grpc::AuthContext&)>& is_trusted) {
    const std::lock_guard lock(context_mutex_);
    if (has_context_ && !is_trusted(*context_->auth_context())) context_->TryCancel();
  }

  void OnWriteDone(bool ok) override {
    ReactionBegins(this);
    GoOn(ok);
    ReactionEnds(this);
  }

  void OnCancel() override {
    ReactionBegins(this);
    Break();
    ReactionEnds(this);
  }

  void OnDone() override {
    ReactionBegins(this);
    {
      const std::lock_guard lock(context_mutex_);
      has_context_ = false;
    }
    if (hooks_.on_done) hooks_.on_done();
    self_.reset();  // May delete this.
  }

 private:
  ServerCall(grpc::CallbackServerContext* context, Hooks hooks)
      : context_(context), hooks_(std::move(hooks)) {}

  // A write has ended.
  void GoOn(bool ok) {
    bool idle = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      idle = queue_.empty();
    }
    if (!ok) return Break();
    Advance();
    if (idle && hooks_.on_idle) hooks_.on_idle();
  }

  void Queue(Event event, bool only_if_idle) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (broken_ || closing_.has_value()) return;
      if (only_if_idle && (writing_ || !queue_.empty())) return;
      if (hooks_.seal && !hooks_.seal(&event)) return;
      queue_.push_back(std::move(event));
    }
    Advance();
  }

  void Break() ABSL_LOCKS_EXCLUDED(mutex_) {
    bool tell = false;
    {
      absl::MutexLock lock(&mutex_);
      tell = !broken_ && !closing_.has_value();
      broken_ = true;
      queue_.clear();
    }
    if (tell && hooks_.on_broken) hooks_.on_broken();
    Advance();
  }

  // Starts the next operation, outside the lock because gRPC may call back from within. At most one
  // thread gets past the flags, so operations never overlap.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::optional<absl::Status> finish;
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      if (broken_) {
        finish = absl::CancelledError("the call was cancelled");
      } else if (!queue_.empty()) {
        writing_ = true;
        current_ = std::move(queue_.front());
        queue_.pop_front();
      } else if (closing_.has_value()) {
        finish = *closing_;
      } else {
        return;
      }
      finished_ = finish.has_value();
    }
    if (!finish.has_value()) return this->StartWrite(&current_);
    if (!finish->ok()) context_->AddTrailingMetadata(kReasonKey, ReasonOf(finish->code()));
    this->Finish(ToGrpc(*finish));
  }

  grpc::CallbackServerContext* const context_;  // gRPC's, until OnDone has returned.
  std::recursive_mutex context_mutex_;
  bool has_context_ = true;  // Under context_mutex_.
  const Hooks hooks_;
  absl::Mutex mutex_;
  std::deque<Event> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  Event current_;  // Being written; the writer's alone while `writing_`.
  std::shared_ptr<ServerCall> self_;
};

}  // namespace baton
