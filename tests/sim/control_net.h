#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/node/message.h"
#include "tests/sim/trace.h"
#include "tests/sim/world.h"

namespace baton::sim {

// A process at one end of the control network.
class NetPeer {
 public:
  virtual ~NetPeer() = default;
  virtual Host& host() = 0;
  virtual void Deliver(Message message) = 0;
};
class NetWorker : public NetPeer {
 public:
  virtual HelloInfo Hello() const = 0;
};

// The control network between routers and workers, as gRPC over TCP gives it: a stream keeps its
// order, streams overtake each other, a cut link delivers late or, after the keepalive time, breaks
// every call of it on both sides.
class ControlNet {
 public:
  ControlNet(World& world, Trace& trace) : world_(world), trace_(trace) {}
  void Attach(std::vector<NetPeer*> routers, std::vector<NetWorker*> workers);

  // A router's outbox.
  void OpenDecode(int router, CallId call, int worker, DecodeRequest request);
  void OpenPrefill(int router, CallId call, int worker, PrefillRequest request);
  // Rebind or Send: a message of its own beside the call's stream.
  void Ask(int router, CallId call, Message message);
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
  void Heal();
  bool Usable(int router, int worker) const;
  // Counts links that came or went.
  uint64_t num_changes() const { return num_changes_; }

 private:
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
    std::vector<size_t> calls;
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
  void ToWorker(size_t call, Time when, Message message, std::string label);
  void ToRouter(size_t call, Time when, Message message, std::string label);
  // The stream is reset: both sides notice, each in its own time.
  void Break(size_t call, const std::string& why);
  void CloseForRouter(size_t call, absl::Status status, Time when);
  void CloseForWorker(size_t call, Time when);
  void BreakLink(int router, int worker, const std::string& why);
  void KeepAlive(int router, int worker);
  void Connect(int router, int worker, Duration delay);
  void TryConnect(int router, int worker);
  bool Reachable(int router, int worker) const;

  World& world_;
  Trace& trace_;
  std::vector<NetPeer*> routers_;
  std::vector<NetWorker*> workers_;
  std::deque<Link> links_;
  std::deque<Call> calls_;  // A worker's name of a call is its index + 1.
  std::vector<absl::flat_hash_map<CallId, size_t>> by_router_call_;
  uint64_t num_changes_ = 0;
};

// For the trace: "Reserved 7/2 cached 4".
std::string Describe(const Message& message);

}  // namespace baton::sim
