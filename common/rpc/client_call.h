#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/node/message.h"
#include "common/rpc/call_events.h"
#include "common/rpc/connection.h"
#include "common/rpc/open_call.h"
#include "common/rpc/reaction_order.h"
#include "common/rpc/sampling_wire.h"

namespace baton {

// One server-streaming call to a worker. Reads until the stream ends; each event is converted and
// handed to `on_event`, the end to `on_closed`, both from a gRPC thread, one after another. Owns
// itself from Start to its end; `on_released` comes last, when nothing of it is left: a channel
// must not be let go of last by one of gRPC's own threads, which the call's context could be.
template <typename Request, typename Event>
class ClientCall : public OpenCall, public grpc::ClientReadReactor<Event> {
 public:
  struct Hooks {
    std::function<void(WorkerEvent)> on_event;
    std::function<void(CallEvents::End)> on_closed;
    std::function<void()> on_released;
  };

  // `request` is sealed.
  ClientCall(Request request, const WireLimits& limits, int64_t max_outputs, Hooks hooks)
      : request_(std::move(request)),
        events_(limits, max_outputs, request_.crc32c()),
        hooks_(std::move(hooks)) {}

  grpc::ClientContext* context() { return &context_; }
  const Request* request() const { return &request_; }

  // After the stub's async method was called with this reactor.
  void Start(std::shared_ptr<ClientCall> self) {
    self_ = std::move(self);
    ReactionEnds(this);
    this->StartRead(&event_);
    this->StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

  void GiveUp() override {
    events_.GiveUp();
    context_.TryCancel();
  }

  void Sweep() override {
    if (events_.Sweep()) context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    ReactionBegins(this);
    const bool goes_on = ok && TakeEvent();
    if (!ok) events_.OnUnread();
    ReactionEnds(this);
    if (goes_on) this->StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    ReactionBegins(this);
    const Hooks hooks = std::move(hooks_);
    hooks.on_closed(events_.EndOf(PeerEndOf(status, context_)));
    self_.reset();  // Deletes this.
    hooks.on_released();
  }

 private:
  // False if the call is given up for what it said.
  bool TakeEvent() {
    absl::StatusOr<std::optional<WorkerEvent>> taken = events_.Take(event_);
    if (!taken.ok()) {
      context_.TryCancel();
      return false;
    }
    if (taken->has_value()) hooks_.on_event(**std::move(taken));
    return true;
  }

  const Request request_;
  CallEvents events_;
  Hooks hooks_;
  grpc::ClientContext context_;
  Event event_;
  std::shared_ptr<ClientCall> self_;
};

}  // namespace baton
