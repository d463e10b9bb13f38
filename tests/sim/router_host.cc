#include "tests/sim/router_host.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

// Shows every snapshot that the router's policy decides on.
class WatchedPolicy : public RoutingPolicy {
 public:
  using Watcher = std::function<void(const RoutingSnapshot&)>;
  WatchedPolicy(std::unique_ptr<RoutingPolicy> policy, Watcher watcher)
      : policy_(std::move(policy)), watcher_(std::move(watcher)) {}
  std::string_view name() const override { return policy_->name(); }
  std::optional<Route> Choose(const RoutingSnapshot& snapshot) const override {
    watcher_(snapshot);
    return policy_->Choose(snapshot);
  }

 private:
  std::unique_ptr<RoutingPolicy> policy_;
  Watcher watcher_;
};

}  // namespace

RouterHost::RouterHost(World& world, Trace& trace, ControlNet& net, int column, Options options)
    : Host(world, column), trace_(trace), net_(net), options_(std::move(options)) {}

void RouterHost::Start() {
  Begin();
  node_options_ = {.incarnation = uint64_t(column() + 1) * 100 + epoch(),
                   .max_pending_prefill_tokens = options_.max_pending_prefill_tokens,
                   .max_directory_entries = options_.max_directory_entries};
  if (options_.small_caps) {
    node_options_.max_queued_requests = 3;
    node_options_.max_queued_tokens = 100;
    node_options_.max_recovering = 1;
    node_options_.max_return_tokens = 1;  // One in each turn.
    node_options_.max_queue_wait = std::chrono::seconds(1);
  }
  if (trace_.on()) trace_.Add(world_.now(), column(), "starts");
  wakeup_ = due_ = kNever;
  step_pending_ = false;
  waits_since_.clear();
  node_ = std::make_unique<RouterNode>(
      node_options_, options_.roles,
      std::make_unique<WatchedPolicy>(MakeRoutingPolicy(options_.policy).value(),
                                      [this](const RoutingSnapshot& s) { OnSnapshot(s); }),
      static_cast<RouterOutbox&>(*this));
  ledger_ = std::make_unique<RouterLedger>(column(), node_options_, *options_.faults, world_);
  net_.RouterStarted(column());
}

void RouterHost::Kill() {
  if (trace_.on()) trace_.Add(world_.now(), column(), "dies");
  past_ = totals();
  past_economy_ = economy();
  End();
  node_.reset();
  net_.RouterDied(column());
}

void RouterHost::Deliver(RouterMail mail) {
  ledger_->OnMail(mail, LocalNow());
  node_->Handle(std::move(mail), LocalNow());
  if (!world_.Hit(Fault::kLazyStep)) return Step();
  if (std::exchange(step_pending_, true)) return;
  After(world_.Micros(1, 300), [this] { Step(); });
}

void RouterHost::Step() {
  step_pending_ = false;
  // A router that wakes late begins its waits anew.
  if (due_ != kNever && LocalNow() - due_ > node_options_.hang_limit / 6) {
    waits_since_.clear();
    ledger_->RestartHolds(LocalNow());
  }
  node_->Step(LocalNow());
  const Time next = due_ = node_->NextDeadline();
  if (next == kNever) return;
  const Time when = std::max(ToWorld(next), world_.now());
  if (when >= wakeup_) return;
  wakeup_ = when;
  At(when, [this, when] {
    if (wakeup_ != when) return;
    wakeup_ = kNever;
    Step();
  });
}

void RouterHost::OpenDecode(CallId call, int32_t worker, DecodeRequest request) {
  ledger_->OnOpenDecode(call, worker, request, LocalNow());
  if (on_call) on_call(worker, request.tokens);
  net_.OpenDecode(column(), call, worker, std::move(request));
}
void RouterHost::OpenPrefill(CallId call, int32_t worker, PrefillRequest request) {
  ledger_->OnOpenPrefill(call, worker, request);
  if (on_call) on_call(worker, request.tokens);
  net_.OpenPrefill(column(), call, worker, std::move(request));
}
void RouterHost::Rebind(CallId call, RebindRequest request) {
  ledger_->OnRebind(call, request, LocalNow());
  net_.Ask(column(), call, RebindAsked{std::move(request)});
}
void RouterHost::Send(CallId call, SendRequest request) {
  ledger_->OnSend(call, request);
  net_.Ask(column(), call, SendAsked{std::move(request)});
}
void RouterHost::Cancel(CallId call) {
  ledger_->OnCancel(call);
  net_.Cancel(column(), call);
}
void RouterHost::Emit(uint64_t request, ClientEvent event) {
  options_.emit(request, std::move(event));
}

// ---- Checks ------------------------------------------------------------------------------------

void RouterHost::OnSnapshot(const RoutingSnapshot& snapshot) {
  for (const auto* side : {&snapshot.prefill, &snapshot.decode}) {
    for (const Candidate& candidate : *side) {
      if (candidate.pending_tokens < 0) {
        options_.violation("a worker has less than no work pending");
      }
      if (expects_idle_ && candidate.pending_tokens != 0) {
        options_.violation("an idle worker has work pending");
      }
    }
  }
  if (!expects_idle_) return;
  // Where no two workers pair, decode workers serve alone.
  const auto num_decode = std::ranges::count(options_.roles, Role::kDecode);
  const size_t all = snapshot.alone ? num_decode : options_.roles.size();
  if (snapshot.prefill.size() + snapshot.decode.size() != all) {
    options_.violation("an idle worker is no candidate");
  }
}

RouterAudit RouterHost::AskAudit() const {
  RouterAudit answer;
  node_->Handle(RouterAuditAsked{[&answer](RouterAudit audit) { answer = std::move(audit); }},
                LocalNow());
  return answer;
}

std::optional<uint64_t> RouterHost::FindRequest(const SequenceId& sequence) const {
  uint64_t key = 0;
  if (node_ == nullptr || sequence.router != node_options_.incarnation) return std::nullopt;
  for (const LiveSequence& live : AskAudit().sequences) {
    if (live.sequence == sequence && absl::SimpleAtoi(live.label, &key)) return key;
  }
  return std::nullopt;
}

// Held sides are the ledger's.
std::string RouterHost::AuditWaits(const RouterAudit& audit, bool is_late) {
  std::map<std::string, Time> waits;
  for (const LiveSequence& sequence : audit.sequences) {
    if (sequence.state != "RESERVING" && sequence.state != "REBINDING") continue;
    const std::string key =
        absl::StrCat(sequence.sequence.counter, "/", sequence.attempt, sequence.state);
    auto it = waits_since_.find(key);
    const Time since = it == waits_since_.end() ? LocalNow() : it->second;
    waits.emplace(key, since);
    if (!is_late && LocalNow() - since > node_options_.answer_limit) {
      return absl::StrCat("I11: sequence ", sequence.sequence.counter, " is ", sequence.state,
                          " beyond its limit");
    }
  }
  waits_since_ = std::move(waits);
  return "";
}

std::string RouterHost::Audit() {
  if (node_ == nullptr) return "";
  const RouterView view = node_->View();
  if (view.queued_requests < 0 || view.queued_requests > node_options_.max_queued_requests ||
      view.queued_tokens < 0 || view.queued_tokens > node_options_.max_queued_tokens ||
      view.live_tenants > view.queued_requests + view.running_requests) {
    return "I11: the router's queue is beyond its caps";
  }
  const RouterCounters& c = node_->counters();
  if (double(c.retries) > 10 + node_options_.retry_ratio * double(c.requests)) {
    return "I11: more retries than the budget allows";
  }
  // After a pause, or before a late step, the node has not looked at the time yet.
  const bool is_late = step_pending_ || wakeup_ <= world_.now();
  const RouterAudit audit = AskAudit();
  if (std::string bad = ledger_->Check(audit, view, c, is_late, LocalNow()); !bad.empty()) {
    return bad;
  }
  return AuditWaits(audit, is_late);
}

std::string RouterHost::AuditQuiet() const {
  if (node_ == nullptr) return "a router did not come back";
  if (node_->View().live_tenants != 0) return "I1: tenants without requests count as live";
  return idle() ? "" : "I1: the router is not idle";
}

std::string RouterHost::DescribeState() const {
  if (node_ == nullptr) return "down";
  std::string text;
  for (const LiveSequence& s : AskAudit().sequences) {
    absl::StrAppend(&text, "\n    ", s.sequence.counter, "/", s.attempt, " ", s.state, " prefill ",
                    s.prefill, " decode ", s.decode, " age ms ",
                    s.age / std::chrono::milliseconds(1));
  }
  for (const auto& w : node_->View().workers) {
    absl::StrAppend(&text, "\n    worker ", w.hello.incarnation,
                    w.healthy ? " usable" : " not: ", w.reason);
  }
  return text;
}

RouterCounters RouterHost::totals() const {
  RouterCounters t = past_;
  if (node_ == nullptr) return t;
  const RouterCounters& c = node_->counters();
  for (int64_t RouterCounters::*field : kRouterCounters) t.*field += c.*field;
  return t;
}

RouterLedger::Totals RouterHost::economy() const {
  RouterLedger::Totals t = past_economy_;
  if (node_ != nullptr) t += ledger_->totals();
  return t;
}

}  // namespace baton::sim
