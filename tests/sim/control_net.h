#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/node/router_mail.h"
#include "common/rpc/call_end.h"
#include "common/rpc/gate.h"
#include "common/rpc/silence.h"
#include "tests/sim/any_mail.h"
#include "tests/sim/trace.h"
#include "tests/sim/wire_call.h"
#include "tests/sim/world.h"

namespace baton::sim {

// A process at one end of the control network, and what its node is told.
template <typename Mail>
class NetPeer {
 public:
  virtual ~NetPeer() = default;
  virtual Host& host() = 0;
  virtual void Deliver(Mail mail) = 0;
};
using NetRouter = NetPeer<RouterMail>;
class NetWorker : public NetPeer<AnyWorkerMail> {
 public:
  virtual HelloInfo Hello() const = 0;
};

// The control network between routers and workers, as gRPC over TCP gives it: a stream keeps its
// order, streams overtake each other, a cut link delivers late or, after the keepalive time, breaks
// every call of it on both sides.
class ControlNet {
 public:
  ControlNet(World& world, Trace& trace) : world_(world), trace_(trace) {}
  void Attach(std::vector<NetRouter*> routers, std::vector<NetWorker*> workers);

  struct WireHooks {
    // Something between these two was damaged, or found to be.
    std::function<void(int router, int worker)> on_damage;
    std::function<void(std::string)> violation;
  };
  // From now on messages travel as the sealed bytes of the shipped edges (control_bytes.cc), some
  // damaged, lost, repeated or misdirected. Whatever is taken that was not sent so, or refused that
  // was, is a violation; so is a connection that goes on behind damage or silence.
  void CarryBytes(WireHooks hooks);

  // A router's outbox.
  void OpenDecode(int router, CallId call, int worker, DecodeRequest request);
  void OpenPrefill(int router, CallId call, int worker, PrefillRequest request);
  // Rebind or Send: a message of its own beside the call's stream.
  void Ask(int router, CallId call, AnyWorkerMail mail);
  void Cancel(int router, CallId call);
  // A worker's outbox.
  void SendEvent(int worker, CallId worker_call, WorkerEvent event);
  void Close(int worker, CallId worker_call, absl::Status status);
  void Report(int worker, const WorkerStatus& status);

  // Processes come and go.
  void RouterStarted(int router);
  void WorkerStarted(int worker);
  void RouterDied(int router);
  void WorkerDied(int worker);
  // It was stopped: whoever is connected finds out after the keepalive time.
  void RouterPaused(int router);
  void WorkerPaused(int worker);

  // Links.
  enum Direction { kToWorker = 1, kToRouter = 2 };
  void Cut(int router, int worker, int directions, Time until);
  void Slow(int router, int worker, Duration extra, Time until);
  // As behind a damaged message: the router connects anew. The worker hears of the end late, or by
  // the next session, which may name this one.
  void EndSession(int router, int worker);
  void Heal();
  bool Usable(int router, int worker) const;
  // Counts links that came or went.
  uint64_t num_changes() const { return num_changes_; }

 private:
  // How long the router's edge has read nothing, counted apart from the shipped code.
  struct Quiet {
    int sweeps = 0;
    bool is_unread = false;  // And reads nothing more.
    bool IsTooLong() { return ++sweeps > (is_unread ? 1 : 5); }
  };
  struct Call {
    int router = 0;
    int worker = 0;
    CallId router_call = 0;
    uint64_t router_epoch = 0;
    uint64_t worker_epoch = 0;
    bool is_twin = false;  // A replayed open: no router hears it.
    bool closed_for_router = false;
    bool closed_for_worker = false;
    Time to_router{};  // When the last message arrives: a stream keeps its order.
    Time to_worker{};
    // Of bytes:
    std::shared_ptr<WireCall> wire;
    uint64_t link_epoch = 0;  // The connection that it goes over.
    uint64_t num_sent = 0;    // Events, signs of life not counted.
    uint64_t num_taken = 0;
    Quiet quiet;
    bool is_mute = false;    // Nothing more comes to the router.
    bool has_ended = false;  // The router's edge knows what the call has come to.
  };
  // An event on its way.
  struct Parcel {
    std::string bytes;
    size_t call = 0;       // On which it was sent,
    uint64_t serial = 0;   // behind so many events.
    bool is_alive = false;
    bool is_damaged = false;
  };
  struct Link {
    bool connected = false;
    bool connecting = false;
    uint64_t epoch = 0;  // Changes when it breaks: what is on its way is lost.
    uint64_t cuts = 0;
    Time cut_to_worker{};  // Until when.
    Time cut_to_router{};
    Duration extra{};
    Time slow_until{};
    Time last_report{};
    Time opened{};  // When the worker hears of the connection: no call of it comes before.
    std::vector<size_t> calls;
    std::vector<size_t>
        unheard;               // Of the sessions before: the worker does not know that they ended.
    bool names_ended = false;  // The next session does.
    // Of bytes, and of this connection:
    Silence watch;
    Quiet watch_quiet;
    bool is_watch_mute = false;
    Incarnation hello = 0;
  };

  template <typename Opened, typename Request>
  void Open(int router, CallId id, int worker, Request request);
  template <typename Opened, typename Request>
  void Replay(const Call& call, const Request& request, const std::string& label);
  Call* Find(int router, CallId call);
  Link& LinkOf(int router, int worker) { return links_[router * workers_.size() + worker]; }
  const Link& LinkOf(int router, int worker) const {
    return links_[router * workers_.size() + worker];
  }
  Time Arrival(const Link& link, Direction direction, Time last);
  void ToWorker(size_t call, Time when, AnyWorkerMail mail, std::string label);
  void ToRouter(size_t call, Time when, RouterMail mail, std::string label);
  // The stream is reset: both sides notice, each in its own time.
  void Break(size_t call, const std::string& why);
  void CloseForRouter(size_t call, absl::Status status, Time when);
  void CloseForWorker(size_t call, Time when, bool session_ended = false);
  void BreakLink(int router, int worker, const std::string& why, bool is_unheard = false);
  void HearEnds(int router, int worker);
  void FindGone(int router, int worker);
  void KeepAlive(int router, int worker);
  void Connect(int router, int worker, Duration delay);
  void TryConnect(int router, int worker);
  bool Reachable(int router, int worker) const;
  void SayHello(int router, int worker);
  void SendStatus(int router, int worker, const WorkerStatus& status);

  // Bytes (control_bytes.cc).
  bool Damages(Fault fault, int router, int worker);
  bool Flips(Fault fault, int router, int worker, WireKind kind, std::string* bytes);
  void Judge(bool is_good, const absl::Status& taken, absl::string_view what);
  void JudgeSilence(bool is_expected, bool is_seen, absl::string_view what);
  void AtRouter(int router, int worker, Time when, std::function<void()> run);
  void AskBytes(size_t call, const AnyWorkerMail& mail, Time when, std::string label);
  void RequestBytes(size_t call, WireKind kind, std::string bytes, Time when, std::string label);
  void TakeRequest(size_t call, WireKind kind, const std::string& bytes, bool is_damaged,
                   const std::string& label);
  void AnswerRefusal(size_t call, WireKind kind, const PeerEnd& refusal);
  void EventBytes(size_t call, bool is_alive, std::string bytes, const std::string& label);
  size_t OtherCall(size_t call);
  void ParcelToRouter(size_t call, Time when, Parcel parcel, std::string label);
  void TakeParcel(size_t call, const Parcel& parcel, const std::string& label);
  void CloseBytes(size_t call, const absl::Status& status);
  void EndCall(size_t call, const PeerEnd& end);
  void Distrust(int router, int worker, uint64_t link_epoch, const std::string& why);
  void ExpectGone(const Call& call, const std::string& why);
  void SayHelloBytes(int router, int worker);
  void StatusBytes(int router, int worker, const WorkerStatus& status);
  void TakeHelloBytes(int router, int worker, const std::string& bytes, bool is_damaged,
                      uint64_t link_epoch);
  void TakeStatusBytes(int router, int worker, const std::string& bytes, bool is_damaged,
                       uint64_t link_epoch);
  void SweepSoon(int router);
  void BeatSoon(int worker);
  std::vector<size_t> OpenCalls(int router, int worker);

  World& world_;
  Trace& trace_;
  std::vector<NetRouter*> routers_;
  std::vector<NetWorker*> workers_;
  std::deque<Link> links_;
  std::deque<Call> calls_;  // A worker's name of a call is its index + 1.
  std::vector<absl::flat_hash_map<CallId, size_t>> by_router_call_;
  uint64_t num_changes_ = 0;
  std::optional<WireHooks> wire_;
};

// For the trace: "Reserved 7/2 cached 4".
std::string Describe(const AnyWorkerMail& mail);
std::string Describe(const RouterMail& mail);

}  // namespace baton::sim
