#include "tests/sim/cluster.h"

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
  return s;
}

Cluster::Cluster(uint64_t seed, const Scenario& scenario)
    : scenario_(scenario),
      world_(seed),
      faults_(scenario.faults),
      fabric_(world_, faults_, [this](std::string what) { Violation(what); }) {
  std::vector<Role> roles(scenario.num_prefill, Role::kPrefill);
  roles.insert(roles.end(), scenario.num_decode, Role::kDecode);
  router_ = std::make_unique<RouterNode>(
      RouterNodeOptions{.incarnation = 1, .max_pending_prefill_tokens = 64}, roles,
      MakeRoutingPolicy(scenario.policy).value(), static_cast<RouterOutbox&>(*this));
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
    world_.At(call.last_to_worker + MessageDelay(), [this, worker, incarnation = call.incarnation,
                                                     request, twin = next_worker_call_++] {
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
           }});
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

// ---- Clients -----------------------------------------------------------------------------------

void Cluster::Submit() {
  Client client;
  ValidRequest& request = client.request;
  Random& random = world_.random;
  const int32_t num_prompts = random.Below(5) == 0 ? 2 : 1;
  for (int32_t p = 0; p < num_prompts; ++p) {
    // Few distinct prefixes, so that caches are hit.
    Random prefix(random.Below(4));
    std::vector<int32_t> prompt;
    const int64_t shared = random.Below(33);
    for (int64_t i = 0; i < shared; ++i) prompt.push_back(prefix.Below(kVocab));
    const int64_t own = 1 + random.Below(8);
    for (int64_t i = 0; i < own; ++i) prompt.push_back(random.Below(kVocab));
    request.prompts.push_back(std::move(prompt));
  }
  request.num_choices = 1 + random.Below(2);
  request.sampling.seed = random.Next();
  request.sampling.max_tokens = 1 + random.Below(24);
  request.sampling.ignore_eos = random.Below(2) == 0;
  request.score_only = random.Below(10) == 0;
  if (request.score_only || random.Below(8) == 0) request.sampling.num_prompt_logprobs = 1;
  request.tenant = random.Below(4) == 0 ? "b" : "a";
  request.timeout =
      world_.Chance(scenario_.deadline_rate) ? world_.Micros(1000, 300000) : seconds(600);

  const size_t choices = request.prompts.size() * request.num_choices;
  for (size_t c = 0; c < choices; ++c) {
    SamplingParams params = request.sampling;
    params.choice = c % request.num_choices;
    client.expected.push_back(
        request.score_only ? std::vector<int32_t>{}
                           : ExpectedTokens(request.prompts[c / request.num_choices], params));
  }
  client.seen.resize(choices);
  client.finished.resize(choices);
  client.scored.resize(request.prompts.size());
  const uint64_t key = next_request_++;
  Trace(absl::StrCat("client submits ", key));
  clients_.emplace(key, client);
  ToRouter(ClientSubmit{.request = key, .body = client.request});

  if (world_.Chance(scenario_.cancel_rate)) {
    world_.After(world_.Micros(0, 100000), [this, key] {
      Trace(absl::StrCat("client cancels ", key));
      if (!clients_.at(key).ended) clients_.at(key).cancelled = true;
      ToRouter(ClientCancel{key});
    });
  }
  if (world_.Chance(scenario_.crash_rate)) {
    const auto index = static_cast<int32_t>(world_.random.Below(workers_.size()));
    world_.After(world_.Micros(0, 50000), [this, index] {
      if (workers_[index]->up()) Crash(index);
    });
  }
}

void Cluster::OnClientTokens(Client& client, const ChoiceTokens& tokens) {
  const auto& expected = client.expected.at(tokens.choice);
  const auto& prompt = client.request.prompts[tokens.choice / client.request.num_choices];
  for (const TokenOutput& output : tokens.outputs) {
    size_t& seen = client.seen[tokens.choice];
    if (client.finished[tokens.choice]) return Violation("a token after the last one");
    if (output.position != static_cast<int32_t>(prompt.size() + seen)) {
      return Violation("a position twice or skipped");
    }
    if (seen >= expected.size() || output.token != expected[seen]) {
      return Violation("a token differs from the fault-free run");
    }
    ++seen;
    client.finished[tokens.choice] = output.finish != FinishReason::kNone;
    if (client.finished[tokens.choice] != (seen == expected.size())) {
      return Violation("a finish reason too early or missing");
    }
  }
}

void Cluster::Emit(uint64_t key, ClientEvent event) {
  Client& client = clients_.at(key);
  if (client.ended) return Violation("an event after the terminal one");
  if (auto* tokens = std::get_if<ChoiceTokens>(&event)) {
    OnClientTokens(client, *tokens);
  } else if (auto* scored = std::get_if<PromptScored>(&event)) {
    if (client.scored.at(scored->prompt)) return Violation("a prompt scored twice");
    client.scored[scored->prompt] = true;
    if (scored->logprobs.size() + 1 != client.request.prompts[scored->prompt].size()) {
      return Violation("prompt log probabilities are missing");
    }
  } else {
    const auto& ended = std::get<RequestEnded>(event);
    Trace(absl::StrCat("request ", key, " ends ", ended.status.ToString()));
    client.ended = ended.status;
    ++(ended.status.ok() ? num_ok_ : num_failed_);
    if (!ended.status.ok()) return;
    for (size_t c = 0; c < client.expected.size(); ++c) {
      if (client.seen[c] != client.expected[c].size()) Violation("an OK answer is incomplete");
    }
    for (bool scored : client.scored) {
      if (scored != (client.request.sampling.num_prompt_logprobs >= 0)) {
        Violation("an OK answer lacks prompt log probabilities");
      }
    }
  }
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
  if (trace_.size() > 400) trace_.pop_front();
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
    world_.At(at, [this] { Submit(); });
  }
  // Then everything is healed, and has to end.
  world_.At(at + seconds(1), [this] {
    faults_ = {};
    Trace("healed");
  });
  const Time limit = at + seconds(200);
  while (violation_.empty() && world_.now() < limit && world_.RunOne()) Check();
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
