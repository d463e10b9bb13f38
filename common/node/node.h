#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/node/message.h"

namespace baton {

// The logic of one process; `Mail` is the variant of all that it is told. Never blocks, sleeps,
// locks, reads a clock or opens a socket. One thread drives it (node_thread.h in production, the
// simulator under test); time is an argument, randomness an injected generator, the network an
// outbox.
template <typename Mail>
class Node {
 public:
  virtual ~Node() = default;

  // Takes one piece of mail. Late, duplicate and unknown mail is a counted no-op.
  virtual void Handle(Mail mail, Time now) = 0;

  // Bounded bookkeeping after mail or at a deadline: admit, build a batch, start it.
  virtual void Step(Time now) = 0;

  // When Step must run even without mail; kNever if mail alone moves this node.
  virtual Time NextDeadline() const = 0;
};

// How a worker's node answers on the calls that routers opened. Calls return at once; an unknown
// or broken call is a no-op.
class WorkerOutbox {
 public:
  virtual ~WorkerOutbox() = default;
  virtual void Emit(CallId call, WorkerEvent event) = 0;
  // The worker's last word on a call.
  virtual void Close(CallId call, absl::Status status) = 0;
};

// How the router's node reaches workers and clients. Calls return at once; what becomes of an
// opened call arrives as WorkerEventReceived and, last, CallClosed.
class RouterOutbox {
 public:
  virtual ~RouterOutbox() = default;
  virtual void OpenDecode(CallId call, int32_t worker, DecodeRequest request) = 0;
  virtual void OpenPrefill(CallId call, int32_t worker, PrefillRequest request) = 0;
  // On an open Decode or Prefill call. If the worker cannot be told, the call is cancelled and
  // closed with UNAVAILABLE.
  virtual void Rebind(CallId call, RebindRequest request) = 0;
  virtual void Send(CallId call, SendRequest request) = 0;
  // The node no longer wants the call; mail of it may still arrive and is ignored.
  virtual void Cancel(CallId call) = 0;
  virtual void Emit(uint64_t request, ClientEvent event) = 0;
};

}  // namespace baton
