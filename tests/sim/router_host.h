#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/node.h"
#include "tests/sim/control_net.h"
#include "tests/sim/economy.h"

namespace baton::sim {

inline constexpr std::array kRouterCounters = {&RouterCounters::requests,
                                               &RouterCounters::ok,
                                               &RouterCounters::failed,
                                               &RouterCounters::cancelled,
                                               &RouterCounters::refused,
                                               &RouterCounters::shed,
                                               &RouterCounters::evicted,
                                               &RouterCounters::requeued,
                                               &RouterCounters::stale_tokens,
                                               &RouterCounters::stale_mail,
                                               &RouterCounters::moves,
                                               &RouterCounters::retries,
                                               &RouterCounters::handoff_failures,
                                               &RouterCounters::rebinds,
                                               &RouterCounters::resends,
                                               &RouterCounters::joins,
                                               &RouterCounters::self_prefills,
                                               &RouterCounters::returns,
                                               &RouterCounters::hung_workers,
                                               &RouterCounters::unanswered,
                                               &RouterCounters::holds_expired};

// One router process: the node that ships between the control network and its clients.
class RouterHost : public Host, public NetRouter, private RouterOutbox {
 public:
  struct Options {
    std::vector<Role> roles;
    std::string policy;
    int64_t max_pending_prefill_tokens = 0;
    size_t max_directory_entries = 0;
    bool small_caps = false;
    const FaultLog* faults = nullptr;
    std::function<void(uint64_t request, ClientEvent event)> emit;
    std::function<void(std::string)> violation;
  };

  RouterHost(World& world, Trace& trace, ControlNet& net, int column, Options options);

  void Start();
  // kill -9. Its clients are the caller's to tell.
  void Kill();

  Host& host() override { return *this; }
  void Deliver(RouterMail mail) override;
  std::string Audit() override;
  std::string AuditQuiet() const;
  std::string DescribeState() const;
  // From now on no worker may have work pending: a probe is about to be sent.
  void ExpectIdleWorkers(bool expected) { expects_idle_ = expected; }
  // Called with the tokens of each call that is opened on a worker.
  std::function<void(int32_t worker, const std::vector<int32_t>& tokens)> on_call;
  bool idle() const { return node_->idle(); }
  // As its status page shows it.
  bool IsHealthy(int worker) const { return node_->View().workers[worker].healthy; }
  // The request of a sequence, if it lives here.
  std::optional<uint64_t> FindRequest(const SequenceId& sequence) const;
  // Over all incarnations.
  RouterCounters totals() const;
  RouterLedger::Totals economy() const;

 private:
  // RouterOutbox.
  void OpenDecode(CallId call, int32_t worker, DecodeRequest request) override;
  void OpenPrefill(CallId call, int32_t worker, PrefillRequest request) override;
  void Rebind(CallId call, RebindRequest request) override;
  void Send(CallId call, SendRequest request) override;
  void Cancel(CallId call) override;
  void Emit(uint64_t request, ClientEvent event) override;

  void Step();
  void OnSnapshot(const RoutingSnapshot& snapshot);
  RouterAudit AskAudit() const;
  std::string AuditWaits(const RouterAudit& audit, bool is_late);

  Trace& trace_;
  ControlNet& net_;
  Options options_;
  RouterNodeOptions node_options_;
  std::unique_ptr<RouterNode> node_;
  std::unique_ptr<RouterLedger> ledger_;  // Of this start.
  Time wakeup_ = kNever;
  Time due_ = kNever;  // By its own clock: when the last step asked to be woken.
  bool step_pending_ = false;
  bool expects_idle_ = false;
  RouterCounters past_;
  RouterLedger::Totals past_economy_;
  std::map<std::string, Time> waits_since_;
};

}  // namespace baton::sim
