#pragma once

#include <functional>
#include <variant>

#include "common/model/model_runner.h"
#include "common/node/message.h"
#include "common/transport/kv_transport.h"

namespace baton {

struct DecodeOpened {
  CallId call = 0;
  DecodeRequest request;
};
struct PrefillOpened {
  CallId call = 0;
  PrefillRequest request;
};
struct RebindAsked {
  RebindRequest request;
};
struct SendAsked {
  SendRequest request;
};
// The router cancelled the call, its deadline passed, or the connection broke.
struct CallBroken {
  CallId call = 0;
};
// Finish what runs, take nothing new.
struct Drain {};
// Called once, on the node's thread.
struct WorkerAuditAsked {
  std::function<void(WorkerAudit)> answer;
};

// All that a worker's node is told: by routers, its runner and its transport. A prefill worker's
// gRPC server takes no Decode calls and Rebinds, a decode worker's no Prefill calls and Sends.
using WorkerMail =
    std::variant<DecodeOpened, PrefillOpened, RebindAsked, SendAsked, CallBroken, Drain,
                 WorkerAuditAsked, LayerDone, RowsDone, StepDone, TransferEvent>;

}  // namespace baton
