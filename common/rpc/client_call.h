#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/node/message.h"
#include "common/rpc/connection.h"
#include "common/rpc/generation_wire.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"

namespace baton {

// What a table of open calls needs of each.
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  virtual void Cancel() = 0;
  // Cancels it; closes as UNAVAILABLE.
  virtual void GiveUp() = 0;
  // Counts one more sweep without a sign of life; after `max_sweeps` of them the call is given up.
  virtual void Sweep(int max_sweeps) = 0;
};

// One server-streaming call to a worker. Reads until the stream ends; each event is converted and
// handed to `on_event`, the end to `on_closed`, both from a gRPC thread, one after another. Owns
// itself from Start to its end; `on_released` comes last, when nothing of it is left: a channel
// must not be let go of last by one of gRPC's own threads, which the call's context could be.
template <typename Request, typename Event>
class ClientCall : public OpenCall, public grpc::ClientReadReactor<Event> {
 public:
  struct Hooks {
    std::function<void(WorkerEvent)> on_event;
    // `is_broken`: that is no word of the worker's. What else goes over the connection is in doubt.
    std::function<void(absl::Status, bool is_broken)> on_closed;
    std::function<void()> on_released;
  };

  ClientCall(WireLimits limits, int64_t max_outputs, Hooks hooks)
      : limits_(limits), outputs_left_(max_outputs), hooks_(std::move(hooks)) {}

  grpc::ClientContext* context() { return &context_; }
  Request* request() { return &request_; }

  // After the stub's async method was called with this reactor.
  void Start(std::shared_ptr<ClientCall> self) {
    self_ = std::move(self);
    this->StartRead(&event_);
    this->StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

  void GiveUp() override {
    unreachable_ = true;
    context_.TryCancel();
  }

  void Sweep(int max_sweeps) override {
    if (sweeps_.fetch_add(1) + 1 <= (is_unread_ ? 1 : max_sweeps)) return;
    silent_ = true;
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    sweeps_ = 0;
    // The stream has ended, and OnDone follows; or the message could not be read at all, and
    // nothing follows: soon a sweep ends it.
    is_unread_ = !ok;
    if (!ok) return;
    bad_ = TakeEvent();
    if (!bad_.ok()) return context_.TryCancel();
    this->StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    const Hooks hooks = std::move(hooks_);
    absl::Status final_status = FinalStatus(status);
    const bool is_broken = IsBroken(final_status);
    hooks.on_closed(std::move(final_status), is_broken);
    self_.reset();  // Deletes this.
    hooks.on_released();
  }

 private:
  absl::Status TakeEvent() {
    const absl::Status whole = CheckWhole();
    is_damaged_ = !whole.ok();
    if (is_damaged_ || event_.has_alive()) return whole;
    ++num_events_;
    ASSIGN_OR_RETURN(WorkerEvent event, FromProto(event_, limits_));
    RETURN_IF_ERROR(CountOutputs(event));
    hooks_.on_event(std::move(event));
    return absl::OkStatus();
  }

  absl::Status CheckWhole() const {
    if (event_.has_alive() && event_.alive().num_events() != num_events_) {
      return absl::DataLossError(absl::StrCat("of ", event_.alive().num_events(),
                                              " events that were sent ", num_events_, " came"));
    }
    return CheckSeal(event_, request_.crc32c() + static_cast<uint32_t>(num_events_));
  }

  // The router's memory is bounded by what was asked for, not by what a worker sends.
  absl::Status CountOutputs(const WorkerEvent& event) {
    int64_t outputs = 1;
    if (const auto* tokens = std::get_if<TokensEvent>(&event)) {
      outputs += static_cast<int64_t>(tokens->outputs.size());
    } else if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
      for (const PromptLogprob& one : scores->logprobs) outputs += NumScores(one);
    }
    outputs_left_ -= outputs;
    if (outputs_left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError("more events than the request allows");
  }

  absl::Status FinalStatus(const grpc::Status& status) const {
    if (!bad_.ok()) {
      return absl::DataLossError(absl::StrCat("the worker sent a bad event: ", bad_.message()));
    }
    const bool is_own_word = status.ok() || !ReasonIn(context_).empty();
    if (unreachable_ && !is_own_word) return absl::UnavailableError("the worker was given up");
    if (silent_ && !is_own_word) return absl::UnavailableError("the call went silent");
    return FromGrpc(status, context_);
  }

  // An event that arrived whole and is refused all the same says nothing of the connection; who
  // gives the call up has looked at that himself.
  bool IsBroken(const absl::Status& final_status) const {
    if (!bad_.ok()) return is_damaged_;
    return !unreachable_ && IsOfTheConnection(final_status, ReasonIn(context_));
  }

  const WireLimits limits_;
  int64_t outputs_left_;
  uint64_t num_events_ = 0;  // Without signs of life.
  Hooks hooks_;
  grpc::ClientContext context_;
  Request request_;
  Event event_;
  absl::Status bad_;
  bool is_damaged_ = false;
  std::atomic<bool> is_unread_ = false;
  std::atomic<int> sweeps_ = 0;
  std::atomic<bool> silent_ = false;
  std::atomic<bool> unreachable_ = false;
  std::shared_ptr<ClientCall> self_;
};

}  // namespace baton
