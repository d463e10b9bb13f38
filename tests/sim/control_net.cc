#include "tests/sim/control_net.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace baton::sim {

using std::chrono::milliseconds;

void ControlNet::Attach(std::vector<NetRouter*> routers, std::vector<NetWorker*> workers) {
  routers_ = std::move(routers);
  workers_ = std::move(workers);
  links_.resize(routers_.size() * workers_.size());
  by_router_call_.resize(routers_.size());
}

// ---- Messages ----------------------------------------------------------------------------------

Time ControlNet::Arrival(const Link& link, Direction direction, Time last) {
  Time at = world_.now() +
            (world_.Hit(Fault::kSlow) ? world_.Micros(1000, 400000) : world_.Micros(20, 1000));
  if (link.slow_until > world_.now()) at += link.extra;
  const Time cut = direction == kToWorker ? link.cut_to_worker : link.cut_to_router;
  if (cut > world_.now()) at = std::max(at, cut + Duration(1));
  return std::max(at, last + Duration(1));
}

void ControlNet::ToWorker(size_t id, Time when, AnyWorkerMail mail, std::string label) {
  const Call& call = calls_[id];
  NetWorker* worker = workers_[call.worker];
  // Void if the link broke before it arrived, or the worker is another process by then.
  world_.Schedule(when, {.guard = &LinkOf(call.router, call.worker).epoch},
                  [this, worker, epoch = call.worker_epoch, mail = std::move(mail),
                   label = std::move(label)]() mutable {
                    if (worker->host().epoch() != epoch) return;
                    worker->host().At(world_.now(), [this, worker, mail = std::move(mail),
                                                     label = std::move(label)]() mutable {
                      world_.Mark();
                      if (trace_.on()) trace_.Add(world_.now(), worker->host().column(), label);
                      worker->Deliver(std::move(mail));
                    });
                  });
}

void ControlNet::ToRouter(size_t id, Time when, RouterMail mail, std::string label) {
  const Call& call = calls_[id];
  NetRouter* router = routers_[call.router];
  world_.Schedule(when, {.guard = &LinkOf(call.router, call.worker).epoch},
                  [this, router, epoch = call.router_epoch, mail = std::move(mail),
                   label = std::move(label)]() mutable {
                    if (router->host().epoch() != epoch) return;
                    router->host().At(world_.now(), [this, router, mail = std::move(mail),
                                                     label = std::move(label)]() mutable {
                      world_.Mark();
                      if (trace_.on()) trace_.Add(world_.now(), router->host().column(), label);
                      router->Deliver(std::move(mail));
                    });
                  });
}

void ControlNet::OpenDecode(int router, CallId call, int worker, DecodeRequest request) {
  Open<DecodeOpened>(router, call, worker, std::move(request));
}

void ControlNet::OpenPrefill(int router, CallId call, int worker, PrefillRequest request) {
  Open<PrefillOpened>(router, call, worker, std::move(request));
}

template <typename Opened, typename Request>
void ControlNet::Open(int router, CallId router_call, int worker, Request request) {
  const size_t id = calls_.size();
  Call& call = calls_.emplace_back();
  call.router = router;
  call.worker = worker;
  call.router_call = router_call;
  call.router_epoch = routers_[router]->host().epoch();
  call.worker_epoch = workers_[worker]->host().epoch();
  by_router_call_[router][router_call] = id;
  Link& link = LinkOf(router, worker);
  std::string label;
  if (trace_.on()) {
    const std::string what =
        absl::StrCat(std::is_same_v<Opened, DecodeOpened> ? "decode " : "prefill ",
                     request.sequence.counter, "/", request.attempt, " call ", id + 1);
    trace_.Add(world_.now(), router,
               absl::StrCat("-> column ", workers_[worker]->host().column(), ": ", what));
    label =
        absl::StrCat("opened: ", what, " from R", router, ", ", request.tokens.size(), " tokens");
  }
  if (!link.connected) {
    call.closed_for_worker = true;
    return CloseForRouter(id, absl::UnavailableError("not connected"), world_.now() + Duration(1));
  }
  link.calls.push_back(id);
  call.to_worker = Arrival(link, kToWorker, link.opened);
  // The edge of another process at that address would refuse it.
  if (workers_[worker]->Hello().incarnation != request.worker) {
    call.closed_for_worker = true;
    return CloseForRouter(id, absl::FailedPreconditionError("another incarnation"),
                          call.to_worker + milliseconds(1));
  }
  if (world_.Hit(Fault::kDropCall)) return Break(id, "stream reset");
  if (world_.Hit(Fault::kDuplicate)) Replay<Opened>(call, request, label);
  if (wire_) {
    call.wire = std::make_shared<WireCall>(request);
    call.link_epoch = link.epoch;
    return RequestBytes(id, call.wire->opening_kind(), call.wire->opening(), call.to_worker,
                        std::move(label));
  }
  ToWorker(id, calls_[id].to_worker, Opened{.call = id + 1, .request = std::move(request)},
           std::move(label));
}

// A replayed open has no client behind it: it breaks some time after the worker has it.
template <typename Opened, typename Request>
void ControlNet::Replay(const Call& original, const Request& request, const std::string& label) {
  const size_t id = calls_.size();
  Call twin = original;
  twin.is_twin = true;
  twin.closed_for_router = true;
  twin.to_worker += world_.Micros(0, 2000);
  calls_.push_back(twin);
  LinkOf(twin.router, twin.worker).calls.push_back(id);
  ToWorker(id, twin.to_worker, Opened{.call = id + 1, .request = request}, "replay of " + label);
  CloseForWorker(id, twin.to_worker + world_.Micros(20, 3000));
}

ControlNet::Call* ControlNet::Find(int router, CallId call) {
  auto it = by_router_call_[router].find(call);
  return it == by_router_call_[router].end() ? nullptr : &calls_[it->second];
}

void ControlNet::Ask(int router, CallId router_call, AnyWorkerMail mail) {
  Call* call = Find(router, router_call);
  std::string label;
  if (trace_.on()) {
    label = Describe(mail);
    trace_.Add(world_.now(), router,
               absl::StrCat("-> column ", workers_[call->worker]->host().column(), ": ", label));
  }
  if (call->closed_for_router || call->closed_for_worker) return;  // A CallClosed is on its way.
  const size_t id = by_router_call_[router].at(router_call);
  // It cannot be delivered: the edge cancels the call.
  if (world_.Hit(Fault::kDropCall)) return Break(id, "the worker could not be told");
  const Link& link = LinkOf(call->router, call->worker);
  const Time at = Arrival(link, kToWorker, {});
  if (wire_) return AskBytes(id, mail, at, std::move(label));
  if (world_.Hit(Fault::kDuplicate)) {
    ToWorker(id, at + world_.Micros(0, 3000), mail, "again: " + label);
  }
  ToWorker(id, at, std::move(mail), std::move(label));
}

void ControlNet::Cancel(int router, CallId router_call) {
  Call* call = Find(router, router_call);
  const size_t id = by_router_call_[router].at(router_call);
  if (trace_.on()) trace_.Add(world_.now(), router, absl::StrCat("cancels call ", id + 1));
  call->closed_for_router = true;
  // Behind the open, in the order of the stream.
  CloseForWorker(id, Arrival(LinkOf(call->router, call->worker), kToWorker, call->to_worker));
}

void ControlNet::SendEvent(int worker, CallId worker_call, WorkerEvent event) {
  const size_t id = worker_call - 1;
  Call& call = calls_[id];
  if (call.is_twin) return;
  const RouterMail mail = WorkerEventReceived{.call = call.router_call, .event = std::move(event)};
  std::string label;
  if (trace_.on()) {
    label = absl::StrCat(Describe(mail), " call ", id + 1);
    trace_.Add(world_.now(), workers_[worker]->host().column(), "-> " + label);
  }
  if (call.closed_for_router || call.closed_for_worker) return;
  if (world_.Hit(Fault::kDropCall)) return Break(id, "stream reset");
  // A stream has no holes; an answer that is never given looks the same.
  const WorkerEvent& sent = std::get<WorkerEventReceived>(mail).event;
  const bool is_answer = std::holds_alternative<ReservedEvent>(sent) ||
                         std::holds_alternative<HandoffFailedEvent>(sent);
  if (is_answer && world_.Hit(Fault::kLoseEvent)) return;
  if (wire_) return EventBytes(id, /*is_alive=*/false, call.wire->Send(sent), label);
  call.to_router = Arrival(LinkOf(call.router, call.worker), kToRouter, call.to_router);
  if (world_.Hit(Fault::kDuplicate)) ToRouter(id, call.to_router, mail, "again: " + label);
  ToRouter(id, call.to_router, std::move(mail), std::move(label));
}

void ControlNet::Close(int worker, CallId worker_call, absl::Status status) {
  const size_t id = worker_call - 1;
  Call& call = calls_[id];
  if (trace_.on()) {
    trace_.Add(world_.now(), workers_[worker]->host().column(),
               absl::StrCat("closes call ", id + 1, " ", status.ToString()));
  }
  call.closed_for_worker = true;
  const Link& link = LinkOf(call.router, call.worker);
  call.to_router = Arrival(link, kToRouter, call.to_router);
  if (wire_) return CloseBytes(id, status);
  // If the link breaks before, the router hears of that instead.
  world_.Schedule(call.to_router, {.guard = &link.epoch}, [this, id, status = std::move(status)] {
    CloseForRouter(id, status, world_.now());
  });
}

void ControlNet::Report(int worker, const WorkerStatus& status) {
  for (size_t r = 0; r < routers_.size(); ++r) {
    Link& link = LinkOf(r, worker);
    // A search through all placements leaves the heartbeat alone.
    const bool is_lost = world_.plan == nullptr && world_.Hit(Fault::kLoseEvent);
    if (!link.connected || is_lost) continue;
    link.last_report = Arrival(link, kToRouter, link.last_report);
    if (wire_) {
      StatusBytes(r, worker, status);
    } else {
      SendStatus(r, worker, status);
    }
  }
}

void ControlNet::SendStatus(int r, int worker, const WorkerStatus& status) {
  const Link& link = LinkOf(r, worker);
  NetRouter* router = routers_[r];
  world_.Schedule(link.last_report, {.guard = &link.epoch}, [this, router, worker, status] {
    if (!router->host().up()) return;
    router->host().At(world_.now(), [router, worker, status] {
      router->Deliver(WorkerStatusChanged{.worker = worker, .status = status});
    });
  });
}

// ---- Ends of calls -----------------------------------------------------------------------------

void ControlNet::Break(size_t id, const std::string& why) {
  if (trace_.on()) trace_.Add(world_.now(), -1, absl::StrCat("call ", id + 1, ": ", why));
  Call& call = calls_[id];
  const Link& link = LinkOf(call.router, call.worker);
  CloseForWorker(id, Arrival(link, kToWorker, call.to_worker));
  CloseForRouter(id, absl::UnavailableError(why), Arrival(link, kToRouter, call.to_router));
}

// The notice is never lost: the edge tells its own node, whatever becomes of the link.
void ControlNet::CloseForRouter(size_t id, absl::Status status, Time when) {
  Call& call = calls_[id];
  if (std::exchange(call.closed_for_router, true)) return;
  call.to_router = std::max(call.to_router, when);
  NetRouter* router = routers_[call.router];
  if (!router->host().up() || router->host().epoch() != call.router_epoch) return;
  world_.Note(id * 2);
  const RouterMail closed = CallClosed{.call = call.router_call, .status = std::move(status)};
  router->host().At(call.to_router, [this, router, closed, id] {
    world_.Mark();
    if (trace_.on()) {
      trace_.Add(world_.now(), router->host().column(),
                 absl::StrCat("call ", id + 1, " ", Describe(closed)));
    }
    router->Deliver(closed);
  });
}

void ControlNet::CloseForWorker(size_t id, Time when, bool session_ended) {
  Call& call = calls_[id];
  if (std::exchange(call.closed_for_worker, true)) return;
  call.to_worker = std::max(call.to_worker, when);
  NetWorker* worker = workers_[call.worker];
  if (!worker->host().up() || worker->host().epoch() != call.worker_epoch) return;
  world_.Note(id * 2 + 1);
  worker->host().At(call.to_worker, [this, worker, id, session_ended] {
    world_.Mark();
    if (trace_.on()) {
      trace_.Add(world_.now(), worker->host().column(), absl::StrCat("call ", id + 1, " broken"));
    }
    worker->Deliver(CallBroken{.call = id + 1, .session_ended = session_ended});
  });
}

// ---- Links -------------------------------------------------------------------------------------

bool ControlNet::Reachable(int router, int worker) const {
  const Link& link = LinkOf(router, worker);
  const Host& r = routers_[router]->host();
  const Host& w = workers_[worker]->host();
  return r.up() && !r.paused() && w.up() && !w.paused() && link.cut_to_worker <= world_.now() &&
         link.cut_to_router <= world_.now();
}

bool ControlNet::Usable(int router, int worker) const {
  return LinkOf(router, worker).connected && Reachable(router, worker);
}

void ControlNet::BreakLink(int r, int w, const std::string& why, bool is_unheard) {
  Link& link = LinkOf(r, w);
  if (!link.connected) return;
  link.connected = false;
  ++num_changes_;
  ++link.epoch;
  if (trace_.on()) {
    trace_.Add(world_.now(), -1,
               absl::StrCat("R", r, " - column ", workers_[w]->host().column(), ": ", why));
  }
  // Each end notices in its own time; the router's calls and its news of the worker in any order.
  const Time at_router = world_.now() + world_.Micros(20, 1000);
  const Time at_worker = world_.now() + world_.Micros(20, 1000);
  for (size_t id : link.calls) {
    // What is on its way is lost: the notice does not queue behind it.
    calls_[id].to_router = calls_[id].to_worker = {};
    CloseForRouter(id, absl::UnavailableError(why), at_router + world_.Micros(0, 500));
    if (is_unheard) {
      link.unheard.push_back(id);
    } else {
      CloseForWorker(id, at_worker, /*session_ended=*/true);
    }
  }
  link.calls.clear();
  if (routers_[r]->host().up()) {
    routers_[r]->host().At(at_router + world_.Micros(0, 500), [this, r, w, why] {
      if (trace_.on()) trace_.Add(world_.now(), r, absl::StrCat("worker ", w, " down: ", why));
      routers_[r]->Deliver(WorkerDown{.worker = w, .reason = why});
    });
  }
  Connect(r, w, world_.Micros(20000, 500000));
}

void ControlNet::EndSession(int r, int w) {
  BreakLink(r, w, "a message was damaged", /*is_unheard=*/true);
  // Else the worker is of the last release.
  LinkOf(r, w).names_ended = world_.random.Below(4) != 0;
  world_.After(world_.Micros(20, 2400000), [this, r, w] { HearEnds(r, w); });
}

void ControlNet::HearEnds(int r, int w) {
  for (const size_t id : std::exchange(LinkOf(r, w).unheard, {})) {
    CloseForWorker(id, world_.now(), /*session_ended=*/true);
  }
}

// Nobody listens where a process has died, unless the router cannot ask.
void ControlNet::FindGone(int r, int w) {
  const Link& link = LinkOf(r, w);
  const bool is_cut = std::max(link.cut_to_worker, link.cut_to_router) > world_.now();
  if (is_cut || !routers_[r]->host().up()) return;
  world_.Schedule(world_.now() + world_.Micros(2000, 5000), {.guard = &link.epoch}, [this, r, w] {
    if (workers_[w]->host().up() || !routers_[r]->host().up()) return;
    routers_[r]->host().At(world_.now(), [this, r, w] {
      routers_[r]->Deliver(WorkerDown{.worker = w, .reason = "no worker answers", .is_gone = true});
    });
  });
}

void ControlNet::Connect(int r, int w, Duration delay) {
  Link& link = LinkOf(r, w);
  if (link.connected || std::exchange(link.connecting, true)) return;
  world_.After(delay, [this, r, w] { TryConnect(r, w); });
}

void ControlNet::TryConnect(int r, int w) {
  Link& link = LinkOf(r, w);
  link.connecting = false;
  if (!Reachable(r, w)) {
    // A process that is down connects when it starts.
    const bool both_up = routers_[r]->host().up() && workers_[w]->host().up();
    if (both_up) Connect(r, w, milliseconds(200));
    return;
  }
  link.connected = true;
  ++num_changes_;
  ++link.epoch;
  link.last_report = Arrival(link, kToRouter, {});
  link.opened = Arrival(link, kToWorker, {});
  if (!link.unheard.empty() && link.names_ended) {
    world_.Schedule(link.opened, {.guard = &link.epoch}, [this, r, w] { HearEnds(r, w); });
  }
  if (wire_) return SayHelloBytes(r, w);
  SayHello(r, w);
}

void ControlNet::SayHello(int r, int w) {
  const Link& link = LinkOf(r, w);
  const HelloInfo hello = workers_[w]->Hello();
  world_.Schedule(link.last_report, {.guard = &link.epoch}, [this, r, w, hello] {
    if (!routers_[r]->host().up()) return;
    routers_[r]->host().At(world_.now(), [this, r, w, hello] {
      if (trace_.on()) {
        trace_.Add(world_.now(), r, absl::StrCat("worker ", w, " up as ", hello.incarnation));
      }
      routers_[r]->Deliver(WorkerUp{.worker = w, .hello = hello});
    });
  });
}

// Looks again after the keepalive time: whoever did not answer by then is cut off.
void ControlNet::KeepAlive(int r, int w) {
  Link& link = LinkOf(r, w);
  if (!link.connected) return;
  const uint64_t cut = ++link.cuts;
  world_.Schedule(world_.now() + world_.Micros(1000000, 2400000), {.guard = &link.epoch},
                  [this, r, w, cut] {
                    if (LinkOf(r, w).cuts != cut || Reachable(r, w)) return;
                    BreakLink(r, w, "keepalive timeout");
                  });
}

void ControlNet::Cut(int r, int w, int directions, Time until) {
  Link& link = LinkOf(r, w);
  if (directions & kToWorker) link.cut_to_worker = std::max(link.cut_to_worker, until);
  if (directions & kToRouter) link.cut_to_router = std::max(link.cut_to_router, until);
  KeepAlive(r, w);
}

void ControlNet::Slow(int r, int w, Duration extra, Time until) {
  LinkOf(r, w).extra = extra;
  LinkOf(r, w).slow_until = until;
}

void ControlNet::Heal() {
  for (size_t r = 0; r < routers_.size(); ++r) {
    for (size_t w = 0; w < workers_.size(); ++w) {
      Link& link = LinkOf(r, w);
      const bool was_cut = std::max(link.cut_to_worker, link.cut_to_router) > world_.now();
      link.cut_to_worker = link.cut_to_router = link.slow_until = world_.now();
      // What is held up would come through as late as the cut was meant to last.
      if (was_cut) BreakLink(r, w, "reset");
    }
  }
}

// ---- Processes ---------------------------------------------------------------------------------

void ControlNet::RouterStarted(int router) {
  by_router_call_[router].clear();
  for (size_t w = 0; w < workers_.size(); ++w) Connect(router, w, world_.Micros(20, 1000));
  if (wire_) SweepSoon(router);
}

void ControlNet::WorkerStarted(int worker) {
  for (size_t r = 0; r < routers_.size(); ++r) Connect(r, worker, world_.Micros(20, 20000));
  if (wire_) BeatSoon(worker);
}

void ControlNet::RouterDied(int router) {
  for (size_t w = 0; w < workers_.size(); ++w) BreakLink(router, w, "connection reset by router");
}

void ControlNet::WorkerDied(int worker) {
  for (int r = 0; r < static_cast<int>(routers_.size()); ++r) {
    BreakLink(r, worker, "connection reset");
    FindGone(r, worker);
  }
}

void ControlNet::RouterPaused(int router) {
  for (size_t w = 0; w < workers_.size(); ++w) KeepAlive(router, w);
}

void ControlNet::WorkerPaused(int worker) {
  for (size_t r = 0; r < routers_.size(); ++r) KeepAlive(r, worker);
}

}  // namespace baton::sim
