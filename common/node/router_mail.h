#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "common/node/message.h"

namespace baton {

struct ClientSubmit {
  uint64_t request = 0;  // The edge's key of the request.
  ValidRequest body;
};
// The client is gone, or gave up: end everything of the request.
struct ClientCancel {
  uint64_t request = 0;
};
// The edge has all it wants of one choice (a stop string was completed).
struct ClientStop {
  uint64_t request = 0;
  int32_t choice = 0;
};
struct WorkerEventReceived {
  CallId call = 0;
  WorkerEvent event;
  std::shared_ptr<const void> held = nullptr;  // Counted by who mailed it, until it is gone.
};
// The worker ended the call, or it is lost. Nothing of this call follows.
struct CallClosed {
  CallId call = 0;
  absl::Status status;
  // This router ended it with its connection, as another one to the same process has replaced that:
  // nothing is known against the worker, and what it has computed is there. Then ABORTED.
  bool is_replaced = false;
};
// The router has a worker more: nobody has answered there yet. An index is given anew only after
// WorkerForgotten.
struct WorkerListed {
  int32_t worker = 0;  // Its index, by which all mail names it.
  Role role = Role::kPrefill;  // What must answer there.
  std::string address;
};
// It is no worker of this router any more. All mail of it and of calls there has come.
struct WorkerForgotten {
  int32_t worker = 0;
};
struct WorkerUp {
  int32_t worker = 0;
  HelloInfo hello;
};
struct WorkerStatusChanged {
  int32_t worker = 0;
  WorkerStatus status;
};
struct WorkerDown {
  int32_t worker = 0;
  std::string reason;
  bool is_gone = false;  // Nobody listens there any more: not only the connection was lost.
};
// Called once, on the node's thread.
struct RouterAuditAsked {
  std::function<void(RouterAudit)> answer;
};

// All that the router's node is told: by clients' edges and by its links to workers.
using RouterMail =
    std::variant<ClientSubmit, ClientCancel, ClientStop, WorkerEventReceived, CallClosed,
                 WorkerListed, WorkerForgotten, WorkerUp, WorkerStatusChanged, WorkerDown,
                 RouterAuditAsked>;

}  // namespace baton
