// The half of ControlNet that carries the control plane's messages as bytes. What is taken of them
// is decided by the shipped code of common/rpc; what ought to be taken is known here.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/control_net.h"

namespace baton::sim {
namespace {

const PeerEnd kCancelledHere{.code = absl::StatusCode::kCancelled};

void FlipBit(Random& random, std::string* bytes) {
  const size_t at = random.Below(bytes->size());
  (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << random.Below(8)));
}

}  // namespace

void ControlNet::CarryBytes(WireHooks hooks) {
  SilenceLibraryLogs();
  wire_ = std::move(hooks);
}

bool ControlNet::Damages(Fault fault, int router, int worker) {
  if (!world_.Hit(fault)) return false;
  wire_->on_damage(router, worker);
  return true;
}

// False also if nobody could tell.
bool ControlNet::Flips(Fault fault, int router, int worker, WireKind kind, std::string* bytes) {
  if (!Damages(fault, router, worker)) return false;
  const std::string sent = *bytes;
  FlipBit(world_.random, bytes);
  return !ReadsTheSame(kind, *bytes, sent);
}

void ControlNet::Judge(bool is_good, const absl::Status& taken, absl::string_view what) {
  if (is_good == taken.ok()) return;
  wire_->violation(absl::StrCat("control plane: ", what,
                                is_good ? " is refused that came as it was sent: "
                                        : " is taken that did not come as it was sent",
                                is_good ? taken.ToString() : ""));
}

void ControlNet::JudgeSilence(bool is_expected, bool is_seen, absl::string_view what) {
  if (is_expected == is_seen) return;
  wire_->violation(absl::StrCat("control plane: ", what, is_seen ? " is given up too early"
                                                                 : " is silent for too long"));
}

// The other end has seen damage or silence. A no-op if another connection has taken its place.
void ControlNet::Distrust(int r, int w, uint64_t link_epoch, const std::string& why) {
  if (LinkOf(r, w).epoch != link_epoch) return;
  wire_->on_damage(r, w);
  BreakLink(r, w, why);
}

// What else went over that connection is in doubt.
void ControlNet::ExpectGone(const Call& call, const std::string& why) {
  if (LinkOf(call.router, call.worker).epoch != call.link_epoch) return;
  wire_->violation(absl::StrCat("control plane: a connection goes on behind ", why));
}

// What arrives at a router's edge; void if the connection breaks before.
void ControlNet::AtRouter(int r, int w, Time when, std::function<void()> run) {
  NetRouter* router = routers_[r];
  world_.Schedule(when, {.guard = &LinkOf(r, w).epoch},
                  [this, router, epoch = router->host().epoch(), run = std::move(run)]() mutable {
                    if (router->host().epoch() != epoch) return;
                    router->host().At(world_.now(), std::move(run));
                  });
}

// ---- Requests ----------------------------------------------------------------------------------

void ControlNet::AskBytes(size_t id, const AnyWorkerMail& mail, Time when, std::string label) {
  const Incarnation worker = calls_[id].wire->worker();
  const auto* rebind = std::get_if<RebindAsked>(&mail);
  const WireKind kind = rebind != nullptr ? WireKind::kRebind : WireKind::kSend;
  const std::string bytes = rebind != nullptr
                                ? Encode(rebind->request, worker)
                                : Encode(std::get<SendAsked>(mail).request, worker);
  if (world_.Hit(Fault::kDuplicate)) {
    RequestBytes(id, kind, bytes, when + world_.Micros(0, 3000), "again: " + label);
  }
  RequestBytes(id, kind, bytes, when, std::move(label));
}

void ControlNet::RequestBytes(size_t id, WireKind kind, std::string bytes, Time when,
                              std::string label) {
  const Call& call = calls_[id];
  const bool is_damaged = Flips(Fault::kFlipRequest, call.router, call.worker, kind, &bytes);
  NetWorker* worker = workers_[call.worker];
  world_.Schedule(when, {.guard = &LinkOf(call.router, call.worker).epoch},
                  [this, id, kind, worker, epoch = call.worker_epoch, is_damaged,
                   bytes = std::move(bytes), label = std::move(label)]() mutable {
                    if (worker->host().epoch() != epoch) return;
                    worker->host().At(world_.now(),
                                      [this, id, kind, is_damaged, bytes = std::move(bytes),
                                       label = std::move(label)] {
                                        TakeRequest(id, kind, bytes, is_damaged, label);
                                      });
                  });
}

void ControlNet::TakeRequest(size_t id, WireKind kind, const std::string& bytes, bool is_damaged,
                             const std::string& label) {
  world_.Mark();
  NetWorker* worker = workers_[calls_[id].worker];
  const RequestGate gate(worker->Hello().incarnation, kSimLimits);
  PeerEnd refusal;
  std::optional<AnyWorkerMail> mail = sim::TakeRequest(gate, kind, id + 1, bytes, &refusal);
  Judge(!is_damaged, absl::Status(refusal.code, refusal.message), "a request");
  if (trace_.on()) {
    trace_.Add(world_.now(), worker->host().column(),
               mail.has_value() ? label : absl::StrCat("refuses ", label));
  }
  if (mail.has_value()) return worker->Deliver(*std::move(mail));
  AnswerRefusal(id, kind, refusal);
}

// A call that is not opened ends so. What comes of a Rebind or a Send is told on its call, which is
// given up if the worker cannot be told.
void ControlNet::AnswerRefusal(size_t id, WireKind kind, const PeerEnd& refusal) {
  Call& call = calls_[id];
  const bool is_open = kind == WireKind::kDecode || kind == WireKind::kPrefill;
  if (is_open) call.closed_for_worker = true;
  const Link& link = LinkOf(call.router, call.worker);
  call.to_router = Arrival(link, kToRouter, call.to_router);
  AtRouter(call.router, call.worker, call.to_router, [this, id, is_open, refusal] {
    const Call& call = calls_[id];
    if (!is_open) call.wire->events().GiveUp();
    EndCall(id, is_open ? refusal : kCancelledHere);
    if (!is_open && IsOfTheConnection(StatusOf(refusal), refusal.reason)) {
      Distrust(call.router, call.worker, call.link_epoch, "a refused request");
    }
    ExpectGone(call, "a damaged request");
  });
}

// ---- Events ------------------------------------------------------------------------------------

void ControlNet::EventBytes(size_t id, bool is_alive, std::string bytes, const std::string& label) {
  Call& call = calls_[id];
  const int r = call.router, w = call.worker;
  Parcel parcel{.bytes = std::move(bytes),
                .call = id,
                .serial = is_alive ? call.num_sent : call.num_sent++,
                .is_alive = is_alive};
  call.to_router = Arrival(LinkOf(r, w), kToRouter, call.to_router);
  call.is_mute = call.is_mute || Damages(Fault::kMuteStream, r, w);
  if (call.is_mute || Damages(Fault::kLoseMessage, r, w)) return;
  const size_t to = Damages(Fault::kMisdirect, r, w) ? OtherCall(id) : id;
  if (Damages(Fault::kRepeatMessage, r, w)) {
    ParcelToRouter(to, call.to_router, parcel, "again: " + label);
  }
  parcel.is_damaged = Flips(Fault::kFlipEvent, r, w, call.wire->event_kind(), &parcel.bytes);
  ParcelToRouter(to, call.to_router, std::move(parcel), label);
}

std::vector<size_t> ControlNet::OpenCalls(int r, int w) {
  std::vector<size_t>& calls = LinkOf(r, w).calls;
  std::erase_if(calls, [this](size_t id) {
    return calls_[id].closed_for_router && calls_[id].closed_for_worker;
  });
  return calls;
}

// Of the same connection, or the same one.
size_t ControlNet::OtherCall(size_t id) {
  std::vector<size_t> others = OpenCalls(calls_[id].router, calls_[id].worker);
  std::erase_if(others, [this, id](size_t other) {
    return other == id || calls_[other].is_twin || calls_[other].closed_for_router;
  });
  return others.empty() ? id : others[world_.random.Below(others.size())];
}

void ControlNet::ParcelToRouter(size_t id, Time when, Parcel parcel, std::string label) {
  AtRouter(calls_[id].router, calls_[id].worker, when,
           [this, id, parcel = std::move(parcel), label = std::move(label)] {
             TakeParcel(id, parcel, label);
           });
}

void ControlNet::TakeParcel(size_t id, const Parcel& parcel, const std::string& label) {
  Call& call = calls_[id];
  if (call.has_ended || call.quiet.is_unread) return;
  world_.Mark();
  absl::StatusOr<std::optional<WorkerEvent>> taken = call.wire->Receive(parcel.bytes);
  // The next of this call, as it was sent.
  const bool is_good = !parcel.is_damaged && parcel.call == id && parcel.serial == call.num_taken;
  Judge(is_good, taken.status(), parcel.is_alive ? "a sign of life" : "an event");
  NetRouter* router = routers_[call.router];
  if (trace_.on() && !(taken.ok() && parcel.is_alive)) {
    trace_.Add(world_.now(), router->host().column(),
               absl::StrCat(taken.ok() ? "" : "refuses ", label));
  }
  call.quiet = {.is_unread = absl::IsUnknown(taken.status())};
  if (call.quiet.is_unread) return;
  if (!taken.ok()) {
    EndCall(id, kCancelledHere);
    return ExpectGone(call, "a damaged event");
  }
  if (!taken->has_value()) return;
  ++call.num_taken;
  router->Deliver(WorkerEventReceived{.call = call.router_call, .event = **std::move(taken)});
}

// ---- Ends of calls -----------------------------------------------------------------------------

// The end travels as a code and its reason, of which one may change.
void ControlNet::CloseBytes(size_t id, const absl::Status& status) {
  const Call& call = calls_[id];
  if (call.is_twin || call.is_mute) return;
  PeerEnd end{.code = status.code(), .message = std::string(status.message())};
  if (!status.ok()) end.reason = ReasonOf(end.code);
  const bool is_damaged = Damages(Fault::kFlipEnd, call.router, call.worker);
  if (is_damaged) {
    const uint64_t what = world_.random.Below(3);
    const uint64_t code = world_.random.Below(2) * world_.random.Below(17);
    if (what == 0) end.code = static_cast<absl::StatusCode>(code);
    if (what == 1) end.reason.clear();
    if (what == 2 && !end.reason.empty()) FlipBit(world_.random, &end.reason);
  }
  AtRouter(call.router, call.worker, call.to_router, [this, id, end, status, is_damaged] {
    const Call& call = calls_[id];
    if (call.quiet.is_unread || call.has_ended) return;
    const absl::Status read = call.wire->events().EndOf(end).status;
    const bool is_own = read.code() == status.code();
    const bool is_of_connection = !is_own && absl::IsUnavailable(read);
    const bool is_lost = absl::IsDataLoss(read) || is_of_connection || absl::IsCancelled(read);
    if (!is_own && !(is_damaged && is_lost)) {
      wire_->violation(absl::StrCat("control plane: a call that ends with ", status.ToString(),
                                    " is taken to end with ", read.ToString()));
    }
    EndCall(id, end);
    if (absl::IsDataLoss(read) || is_of_connection) ExpectGone(call, "a damaged end");
  });
}

// The router's edge knows what a call has come to.
void ControlNet::EndCall(size_t id, const PeerEnd& peer) {
  Call& call = calls_[id];
  if (std::exchange(call.has_ended, true)) return;
  CallEvents::End end = call.wire->events().EndOf(peer);
  const std::string why(end.status.message());
  CloseForRouter(id, std::move(end.status), world_.now());
  if (end.is_broken) Distrust(call.router, call.worker, call.link_epoch, why);
  CloseForWorker(id, Arrival(LinkOf(call.router, call.worker), kToWorker, call.to_worker));
}

// ---- Hello and status --------------------------------------------------------------------------

void ControlNet::SayHelloBytes(int r, int w) {
  Link& link = LinkOf(r, w);
  link.watch.OnRead(true);
  link.watch_quiet = {};
  link.is_watch_mute = false;
  std::string bytes = Encode(workers_[w]->Hello());
  const bool is_damaged = Flips(Fault::kFlipEvent, r, w, WireKind::kHello, &bytes);
  AtRouter(r, w, link.last_report,
           [this, r, w, is_damaged, epoch = link.epoch, bytes = std::move(bytes)] {
             TakeHelloBytes(r, w, bytes, is_damaged, epoch);
           });
}

void ControlNet::TakeHelloBytes(int r, int w, const std::string& bytes, bool is_damaged,
                                uint64_t link_epoch) {
  const absl::StatusOr<HelloInfo> hello = TakeHello(bytes);
  Judge(!is_damaged, hello.status(), "a hello");
  if (!hello.ok()) return Distrust(r, w, link_epoch, "bad hello");
  if (trace_.on()) {
    trace_.Add(world_.now(), r, absl::StrCat("worker ", w, " up as ", hello->incarnation));
  }
  LinkOf(r, w).hello = hello->incarnation;
  routers_[r]->Deliver(WorkerUp{.worker = w, .hello = *hello});
}

void ControlNet::StatusBytes(int r, int w, const WorkerStatus& status) {
  Link& link = LinkOf(r, w);
  link.is_watch_mute = link.is_watch_mute || Damages(Fault::kMuteStream, r, w);
  if (link.is_watch_mute) return;
  std::string bytes = Encode(status);
  const bool is_damaged = Flips(Fault::kFlipEvent, r, w, WireKind::kStatus, &bytes);
  AtRouter(r, w, link.last_report,
           [this, r, w, is_damaged, epoch = link.epoch, bytes = std::move(bytes)] {
             TakeStatusBytes(r, w, bytes, is_damaged, epoch);
           });
}

void ControlNet::TakeStatusBytes(int r, int w, const std::string& bytes, bool is_damaged,
                                 uint64_t link_epoch) {
  Link& link = LinkOf(r, w);
  const absl::StatusOr<WorkerStatus> status = TakeStatus(bytes, link.hello);
  Judge(!is_damaged, status.status(), "a status");
  const bool is_current = link.epoch == link_epoch;
  const bool is_unread = absl::IsUnknown(status.status());
  if (is_current) {
    link.watch.OnRead(!is_unread);
    link.watch_quiet = {.is_unread = is_unread};
    link.is_watch_mute = link.is_watch_mute || is_unread;
  }
  if (is_unread) return;
  if (!status.ok()) return Distrust(r, w, link_epoch, "bad status");
  routers_[r]->Deliver(WorkerStatusChanged{.worker = w, .status = *status});
}

// ---- Once a second -----------------------------------------------------------------------------

void ControlNet::SweepSoon(int r) {
  routers_[r]->host().After(kSweepInterval, [this, r] {
    SweepSoon(r);
    for (int w = 0; w < static_cast<int>(workers_.size()); ++w) {
      for (size_t id : OpenCalls(r, w)) {
        Call& call = calls_[id];
        if (call.closed_for_router || call.is_twin) continue;
        const bool is_silent = call.wire->events().Sweep();
        JudgeSilence(call.quiet.IsTooLong(), is_silent, "a call");
        if (!is_silent) continue;
        EndCall(id, kCancelledHere);
        ExpectGone(call, "silence");
      }
      Link& link = LinkOf(r, w);
      if (!link.connected) continue;
      const bool is_silent = link.watch.Sweep();
      JudgeSilence(link.watch_quiet.IsTooLong(), is_silent, "a Watch");
      if (is_silent) Distrust(r, w, link.epoch, "no status");
    }
  });
}

// A sign of life on each call that has nothing else to say.
void ControlNet::BeatSoon(int w) {
  workers_[w]->host().After(kBeatInterval, [this, w] {
    BeatSoon(w);
    for (int r = 0; r < static_cast<int>(routers_.size()); ++r) {
      for (size_t id : OpenCalls(r, w)) {
        const Call& call = calls_[id];
        if (call.closed_for_worker || call.is_twin || call.to_router > world_.now()) continue;
        EventBytes(id, /*is_alive=*/true, call.wire->SendAlive(), "Alive");
      }
    }
  });
}

}  // namespace baton::sim
