#pragma once

#include <functional>
#include <utility>
#include <variant>

#include "common/model/model_runner.h"
#include "common/node/inbox.h"
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
  // With the session of all calls of that router, so that it may want to go on with this one.
  bool session_ended = false;
};
// Finish what runs, take nothing new.
struct Drain {};
// Called once, on the node's thread.
struct WorkerAuditAsked {
  std::function<void(WorkerAudit)> answer;
};

// All that a worker's node is told: by routers, its runner and its transport. `Own` is what the
// nodes of one kind of worker are told alone.
template <typename... Own>
using WorkerMail = std::variant<Own..., CallBroken, Drain, WorkerAuditAsked, LayerDone, RowsDone,
                                StepDone, TransferEvent>;
using DecodeMail = WorkerMail<DecodeOpened, RebindAsked>;
using PrefillMail = WorkerMail<PrefillOpened, SendAsked>;

// Of a node of either kind, for who does not know which.
using WorkerInbox = std::variant<Inbox<DecodeMail>*, Inbox<PrefillMail>*>;

// What both kinds are told.
inline void Post(const WorkerInbox& inbox, WorkerMail<> mail) {
  std::visit([](auto* to, auto& one) { to->Post(std::move(one)); }, inbox, mail);
}

}  // namespace baton
