#include "tests/sim/cluster.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/sim/worker.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

Scenario DrawScenario(uint64_t seed) {
  Random random(Random::Mix(seed ^ 0x5CE7A710));
  auto pick = [&random](int64_t low, int64_t high) {
    return static_cast<int32_t>(low + static_cast<int64_t>(random.Below(high - low + 1)));
  };
  Scenario s;
  s.num_prefill = pick(1, 3);
  s.num_decode = pick(1, 3);
  s.prefill_block_size = 1 << pick(0, 3);
  s.decode_block_size = 1 << pick(0, 3);
  // A prompt has at most 40 tokens and an answer 24: pools hold one such sequence or several.
  s.prefill_blocks = pick(64, 160) / s.prefill_block_size + 1;
  s.decode_blocks = pick(64, 200) / s.decode_block_size + 1;
  s.chunk_tokens = pick(1, 32);
  s.num_requests = pick(5, 30);
  s.policy = random.Below(2) == 0 ? "prefix_affinity" : "least_loaded";
  auto rate = [&random](double most) { return random.Below(2) == 0 ? 0.0 : most * random.Unit(); };
  s.cancel_rate = rate(0.4);
  s.deadline_rate = rate(0.3);
  s.crash_rate = rate(0.1);
  s.faults = {.drop_call = rate(0.03),
              .lose_event = rate(0.02),
              .duplicate = rate(0.1),
              .slow = rate(0.1),
              .transfer = rate(0.05),
              .lose_ack = rate(0.1),
              .step_error = rate(0.02)};
  s.drain_rate = rate(0.1);
  return s;
}

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

Cluster::Cluster(uint64_t seed, const Scenario& scenario)
    : scenario_(scenario),
      world_(seed),
      faults_(scenario.faults),
      fabric_(world_, faults_, [this](std::string what) { Violation(what); }) {
  std::vector<Role> roles(scenario.num_prefill, Role::kPrefill);
  roles.insert(roles.end(), scenario.num_decode, Role::kDecode);
  router_ = std::make_unique<RouterNode>(
      RouterNodeOptions{.incarnation = 1, .max_pending_prefill_tokens = 64}, roles,
      std::make_unique<WatchedPolicy>(MakeRoutingPolicy(scenario.policy).value(),
                                      [this](const RoutingSnapshot& s) { OnSnapshot(s); }),
      static_cast<RouterOutbox&>(*this));
  for (Role role : roles) workers_.push_back(std::make_unique<Worker>(role));
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) StartWorker(i);
}

Cluster::~Cluster() = default;

// ---- The control network -----------------------------------------------------------------------

Duration Cluster::MessageDelay() {
  return world_.Chance(faults_.slow) ? world_.Micros(1000, 400000) : world_.Micros(20, 1000);
}

void Cluster::OpenDecode(CallId call, int32_t worker, DecodeRequest request) {
  Trace(absl::StrCat("R opens decode ", call, " seq ", request.sequence.counter, "/",
                     request.attempt, " on ", worker));
  Open<DecodeOpened>(call, worker, std::move(request));
}

void Cluster::OpenPrefill(CallId call, int32_t worker, PrefillRequest request) {
  Trace(absl::StrCat("R opens prefill ", call, " seq ", request.sequence.counter, "/",
                     request.attempt, " on ", worker));
  Open<PrefillOpened>(call, worker, std::move(request));
}

template <typename Opened, typename Request>
void Cluster::Open(CallId id, int32_t worker, Request request) {
  Call& call = calls_[id];
  call.worker = worker;
  call.incarnation = workers_[worker]->incarnation();
  call.worker_call = next_worker_call_++;
  call.tenant = request.tenant;
  call.prompt = request.tokens;
  if constexpr (std::is_same_v<Opened, DecodeOpened>) {
    const std::vector<int32_t> answer = ExpectedTokens(request.tokens, request.sampling);
    call.answered = request.tokens;
    call.answered.insert(call.answered.end(), answer.begin(), answer.end());
  }
  call.last_to_worker = world_.now() + MessageDelay();
  by_worker_call_[{call.incarnation, call.worker_call}] = id;
  if (!workers_[worker]->up()) {
    CloseForRouter(id, absl::UnavailableError("connection refused"), world_.now());
    return;
  }
  if (world_.Chance(faults_.drop_call)) {
    world_.After(MessageDelay(), [this, id] { BreakCall(id); });
    return;
  }
  if (world_.Chance(faults_.duplicate)) {
    // A replayed open has no client behind it: it breaks as soon as the worker answers.
    world_.At(call.last_to_worker + MessageDelay(),
              [this, worker, incarnation = call.incarnation, request, twin = next_worker_call_++] {
                if (workers_[worker]->incarnation() != incarnation) return;
                workers_[worker]->Deliver(Opened{.call = twin, .request = request});
                world_.After(MessageDelay(), [this, worker, incarnation, twin] {
                  if (workers_[worker]->incarnation() != incarnation) return;
                  workers_[worker]->Deliver(CallBroken{twin});
                });
              });
  }
  world_.At(call.last_to_worker, [this, id, worker, request = std::move(request)]() mutable {
    Call& call = calls_.at(id);
    if (workers_[worker]->incarnation() != call.incarnation) return;
    workers_[worker]->Deliver(Opened{.call = call.worker_call, .request = std::move(request)});
  });
}

void Cluster::Rebind(CallId call, RebindRequest request) {
  Trace(absl::StrCat("R rebinds ", call, " seq ", request.sequence.counter, "/", request.attempt,
                     " to ", request.prefill));
  Tell(call, RebindAsked{request});
}

void Cluster::Send(CallId call, SendRequest request) {
  Trace(absl::StrCat("R sends ", call, " seq ", request.sequence.counter, "/", request.attempt));
  Tell(call, SendAsked{std::move(request)});
}

// A unary call beside the stream that it is about.
void Cluster::Tell(CallId id, Message message) {
  const Call& call = calls_.at(id);
  if (world_.Chance(faults_.drop_call)) {
    world_.After(MessageDelay(), [this, id] { BreakCall(id); });
    return;
  }
  const int copies = world_.Chance(faults_.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    world_.At(std::max(call.last_to_worker, world_.now()) + MessageDelay(),
              [this, id, message]() mutable {
                const Call& call = calls_.at(id);
                if (workers_[call.worker]->incarnation() != call.incarnation) return;
                workers_[call.worker]->Deliver(std::move(message));
              });
  }
}

void Cluster::Cancel(CallId id) {
  Trace(absl::StrCat("R cancels ", id));
  Call& call = calls_.at(id);
  if (std::exchange(call.closed_for_worker, true)) return;
  // Behind the open, in the order of the stream.
  call.last_to_worker = std::max(call.last_to_worker, world_.now() + MessageDelay());
  world_.At(call.last_to_worker, [this, id] {
    const Call& call = calls_.at(id);
    if (workers_[call.worker]->incarnation() != call.incarnation) return;
    workers_[call.worker]->Deliver(CallBroken{call.worker_call});
  });
}

// The stream is reset: both sides notice, each in its own time.
void Cluster::BreakCall(CallId id) {
  Cancel(id);
  CloseForRouter(id, absl::UnavailableError("stream reset"), world_.now() + MessageDelay());
}

void Cluster::CloseForRouter(CallId id, absl::Status status, Time at) {
  Call& call = calls_.at(id);
  if (std::exchange(call.closed_for_router, true)) return;
  call.last_to_router = std::max(call.last_to_router, at);
  world_.At(call.last_to_router,
            [this, id, status] { ToRouter(CallClosed{.call = id, .status = status}); });
}

void Cluster::FromWorker(int32_t worker, CallId worker_call, std::optional<WorkerEvent> event,
                         absl::Status status) {
  auto it = by_worker_call_.find({workers_[worker]->incarnation(), worker_call});
  if (it == by_worker_call_.end()) return;  // A replayed open.
  const CallId id = it->second;
  Call& call = calls_.at(id);
  if (!event) {
    Trace(absl::StrCat("worker ", worker, " closes ", id, " ", status.ToString()));
    call.closed_for_worker = true;
    CloseForRouter(id, status, world_.now() + MessageDelay());
    return;
  }
  if (auto* reserved = std::get_if<ReservedEvent>(&*event)) {
    CheckCacheHit(call, reserved->cached_tokens);
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&*event)) {
    CheckCacheHit(call, prefilled->cached_tokens);
  }
  if (call.closed_for_router) return;
  if (world_.Chance(faults_.drop_call)) {
    BreakCall(id);
    return;
  }
  if (world_.Chance(faults_.lose_event)) return;
  call.last_to_router = std::max(call.last_to_router, world_.now() + MessageDelay());
  const int copies = world_.Chance(faults_.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    world_.At(call.last_to_router, [this, id, event = *event] {
      ToRouter(WorkerEventReceived{id, event});
    });
  }
}

void Cluster::ToRouter(Message message) {
  router_->Handle(std::move(message), world_.now());
  StepRouter();
}

void Cluster::StepRouter() {
  router_->Step(world_.now());
  const Time next = router_->NextDeadline();
  if (next == kNever || next == router_wakeup_) return;
  router_wakeup_ = next;
  world_.At(next, [this, next] {
    if (router_wakeup_ == next) router_wakeup_ = kNever;
    StepRouter();
  });
}

// ---- Workers -----------------------------------------------------------------------------------

void Cluster::StartWorker(int32_t index) {
  const bool is_prefill = workers_[index]->role() == Role::kPrefill;
  workers_[index]->Start(
      {.world = &world_,
       .fabric = &fabric_,
       .faults = &faults_,
       .incarnation = next_incarnation_++,
       .num_blocks = is_prefill ? scenario_.prefill_blocks : scenario_.decode_blocks,
       .block_size = is_prefill ? scenario_.prefill_block_size : scenario_.decode_block_size,
       .chunk_tokens = scenario_.chunk_tokens,
       .from_worker =
           [this, index](CallId call, std::optional<WorkerEvent> event, absl::Status status) {
             FromWorker(index, call, std::move(event), std::move(status));
           },
       .report =
           [this, index](WorkerStatus status) {
             if (world_.Chance(faults_.lose_event)) return;
             world_.After(MessageDelay(), [this, index, status] {
               ToRouter(WorkerStatusChanged{.worker = index, .status = status});
             });
           },
       .violation = [this](std::string what) { Violation(what); }});
  const HelloInfo hello = workers_[index]->Hello();
  world_.After(MessageDelay(), [this, index, hello] {
    if (workers_[index]->incarnation() != hello.incarnation) return;
    ToRouter(WorkerUp{.worker = index, .hello = hello});
  });
}

void Cluster::Crash(int32_t index) {
  Trace(absl::StrCat("worker ", index, " crashes"));
  num_preemptions_ += workers_[index]->num_preemptions();
  num_revoked_ += workers_[index]->num_revoked();
  const Incarnation dead = workers_[index]->incarnation();
  workers_[index]->Stop();
  for (auto& [id, call] : calls_) {
    if (call.worker != index || call.incarnation != dead) continue;
    call.closed_for_worker = true;
    CloseForRouter(id, absl::UnavailableError("worker lost"), world_.now() + MessageDelay());
  }
  world_.After(MessageDelay(), [this, index, dead] {
    if (workers_[index]->incarnation() == dead) {
      ToRouter(WorkerDown{.worker = index, .reason = "connection lost"});
    }
  });
  world_.After(world_.Micros(1000, 500000), [this, index] { StartWorker(index); });
}

// An orderly restart: takes nothing new, ends what it has, goes. Not the last one of its role.
void Cluster::Drain(int32_t index) {
  auto usable = [&](const auto& w) {
    return w->role() == workers_[index]->role() && w->up() && !w->draining();
  };
  if (!usable(workers_[index]) || std::ranges::count_if(workers_, usable) < 2) return;
  Trace(absl::StrCat("worker ", index, " drains"));
  workers_[index]->Deliver(baton::Drain{});
  // What the router sent before it knew has arrived by then.
  world_.After(seconds(1),
               [this, index, old = workers_[index]->incarnation()] { StopWhenIdle(index, old); });
}

void Cluster::StopWhenIdle(int32_t index, Incarnation drained) {
  if (!workers_[index]->up() || workers_[index]->incarnation() != drained) return;
  if (workers_[index]->idle()) return Crash(index);
  world_.After(milliseconds(20), [this, index, drained] { StopWhenIdle(index, drained); });
}

// ---- Running and checking ----------------------------------------------------------------------

void Cluster::Violation(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void Cluster::Trace(const std::string& line) {
  const std::string stamped =
      absl::StrFormat("%10d us  %s", world_.now().time_since_epoch().count() / 1000, line);
  for (char c : stamped) trace_digest_ = Random::Mix(trace_digest_ ^ static_cast<uint8_t>(c));
  trace_.push_back(stamped);
  if (trace_.size() > 4000) trace_.pop_front();
}

void Cluster::Check() {
  for (const auto& worker : workers_) {
    if (!worker->up()) continue;
    if (std::string bad = worker->Audit(); !bad.empty()) Violation(bad);
  }
}

void Cluster::CheckQuiet() {
  for (const auto& [key, client] : clients_) {
    if (!client.ended) Violation(absl::StrCat("request ", key, " never ended"));
    const bool may_fail = client.cancelled || client.request.timeout < seconds(600);
    if (scenario_.faults.drop_call == 0 && scenario_.faults.lose_event == 0 &&
        scenario_.faults.transfer == 0 && scenario_.faults.step_error == 0 &&
        scenario_.crash_rate == 0 && client.ended && !client.ended->ok() && !may_fail) {
      Violation(
          absl::StrCat("request ", key, " failed without a fault: ", client.ended->ToString()));
    }
  }
  if (!router_->idle() || router_->num_open_calls() > 0) Violation("the router is not idle");
  for (const auto& worker : workers_) {
    if (std::string bad = worker->AuditQuiet(); !bad.empty()) Violation(bad);
    num_preemptions_ += worker->num_preemptions();
    num_revoked_ += worker->num_revoked();
  }
}

std::string Cluster::Run() {
  Time at{};
  for (int32_t i = 0; i < scenario_.num_requests; ++i) {
    at += world_.Micros(0, 20000);
    world_.At(at, [this] { SubmitDrawn(); });
  }
  // Then everything is healed, and has to end.
  world_.At(at + seconds(1), [this] {
    faults_ = {};
    Trace("healed");
  });
  const Time limit = at + seconds(200);
  while (violation_.empty() && world_.RunOne(limit)) Check();
  if (violation_.empty()) Probe();
  if (violation_.empty()) CheckQuiet();
  if (violation_.empty()) return "";
  std::string report = violation_ + "\n";
  for (const std::string& line : trace_) absl::StrAppend(&report, line, "\n");
  for (size_t i = 0; i < workers_.size(); ++i) {
    absl::StrAppend(&report, "worker ", i, ": ", workers_[i]->Describe(), "\n");
  }
  return report;
}

}  // namespace baton::sim
