#include "tests/sim/cluster.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

Cluster::Cluster(uint64_t seed, const Scenario& scenario)
    : scenario_(scenario),
      world_(seed),
      fabric_(world_, [this](std::string what) { Violation(what); }),
      net_(world_, trace_),
      clients_(world_, trace_, scenario_, [this](std::string what) { Violation(what); }) {
  world_.rates = scenario.faults;
  if (scenario.control_bytes) {
    net_.CarryBytes({.on_damage = [this](int r, int w) { faults_.TroubleLink(r, w, world_.now()); },
                     .violation = [this](std::string what) { Violation(what); }});
  }
  if (scenario.staged) fabric_.StagePools();
  if (scenario.nccl) fabric_.UseNccl(seed);
  if (scenario.has_only_nccl_faults()) fabric_.OnlyNcclFails();
  BuildHosts(seed);
  clients_.on_failure = [this](int router, Time submitted, const absl::Status& status) {
    OnFailure(router, submitted, status);
    CheckNotAlone(router, submitted, status);
  };
}

Cluster::~Cluster() = default;

void Cluster::BuildHosts(uint64_t seed) {
  const auto violation = [this](std::string what) { Violation(what); };
  std::vector<Role> roles(scenario_.num_prefill, Role::kPrefill);
  roles.insert(roles.end(), scenario_.num_decode, Role::kDecode);
  int column = 0;
  for (int r = 0; r < scenario_.num_routers; ++r) {
    routers_.push_back(std::make_unique<RouterHost>(
        world_, trace_, net_, column++,
        RouterHost::Options{
            .roles = roles,
            .policy = scenario_.policy,
            .max_pending_prefill_tokens = scenario_.max_pending_prefill_tokens,
            .max_directory_entries = scenario_.max_directory_entries,
            .small_caps = scenario_.small_caps,
            .faults = &faults_,
            .emit = [this, r](uint64_t key,
                              ClientEvent event) { clients_.Emit(r, key, std::move(event)); },
            .violation = violation}));
  }
  for (int w = 0; w < static_cast<int>(roles.size()); ++w) {
    const bool is_prefill = roles[w] == Role::kPrefill;
    const int of_role = is_prefill ? w : w - scenario_.num_prefill;
    workers_.push_back(std::make_unique<WorkerHost>(
        world_, trace_, fabric_, net_, column++,
        WorkerHost::Options{
            .role = roles[w],
            .index = w,
            .num_blocks = is_prefill ? scenario_.prefill_blocks : scenario_.decode_blocks,
            .block_size = is_prefill ? scenario_.prefill_block_size : scenario_.decode_block_size,
            .chunk_tokens = scenario_.chunk_tokens,
            .max_batch = scenario_.max_batch,
            .arch = scenario_.arch(),
            .max_length = scenario_.max_length,
            .tp = scenario_.TpOf(roles[w], of_role),
            .max_waiting = scenario_.small_caps ? 2 : 8,
            .finish_together = is_prefill ? scenario_.finish_together : 0,
            .swap_blocks = is_prefill ? 0 : scenario_.swap_blocks,
            .steps_in_flight = scenario_.steps_in_flight,
            .follow_up_lead = scenario_.follow_up_lead,
            .token_time = scenario_.token_time,
            .upgrades = scenario_.upgrades,
            .violation = violation,
            .cancel = [this](const SequenceId& sequence) { CancelSequence(sequence); }}));
  }
  std::vector<NetRouter*> net_routers;
  std::vector<RouterHost*> client_routers;
  std::vector<NetWorker*> net_workers;
  for (auto& router : routers_) net_routers.push_back(router.get());
  for (auto& router : routers_) client_routers.push_back(router.get());
  for (auto& worker : workers_) net_workers.push_back(worker.get());
  net_.Attach(std::move(net_routers), std::move(net_workers));
  clients_.Attach(std::move(client_routers));
  last_unhealthy_.resize(routers_.size());
  last_without_decode_.resize(routers_.size());
  Random clocks(Random::Mix(seed ^ 0xC10C));
  for (Host* host : world_.hosts) {
    const double skew = (2 * clocks.Unit() - 1) * scenario_.clock_skew;
    host->SetClock(1'000'000'000'000 + static_cast<int64_t>(clocks.Below(1'000'000'000)),
                   static_cast<int64_t>(skew * 1e6));
  }
}

void Cluster::TurnTraceOn() {
  std::vector<std::string> names;
  for (size_t r = 0; r < routers_.size(); ++r) names.push_back(absl::StrCat("R", r));
  int prefill = 0, decode = 0;
  for (const auto& worker : workers_) {
    names.push_back(worker->role() == Role::kPrefill ? absl::StrCat("P", prefill++)
                                                     : absl::StrCat("D", decode++));
  }
  trace_.TurnOn(std::move(names));
}

void Cluster::StartAll() {
  for (auto& router : routers_) router->Start();
  for (auto& worker : workers_) worker->Start();
}

// ---- Checks ------------------------------------------------------------------------------------

void Cluster::Violation(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void Cluster::Check() {
  for (Host* host : world_.touched) {
    host->Audited();
    if (std::string bad = host->Audit(); !bad.empty()) {
      Violation(absl::StrCat(bad, " (column ", host->column(), ")"));
    }
  }
  world_.touched.clear();
  NoteHealth();
}

bool Cluster::IsHealthy(int router, const WorkerHost& worker) const {
  return net_.Usable(router, worker.index()) && !worker.draining() && !worker.stalled();
}

bool Cluster::HasHealthyDecode(int router) const {
  return std::ranges::any_of(workers_, [&](const auto& worker) {
    return worker->role() == Role::kDecode && IsHealthy(router, *worker);
  });
}

bool Cluster::HasHealthyPair(int router) const {
  const auto usable = [&](const auto& worker) { return IsHealthy(router, *worker); };
  for (const auto& prefill : workers_) {
    if (prefill->role() != Role::kPrefill || !usable(prefill)) continue;
    for (const auto& decode : workers_) {
      if (decode->role() == Role::kDecode && usable(decode) &&
          prefill->Hello().kv_wire_version == decode->Hello().kv_wire_version &&
          !fabric_.Blocked(prefill->column(), decode->column()) &&
          !fabric_.Blocked(decode->column(), prefill->column())) {
        return true;
      }
    }
  }
  return false;
}

void Cluster::NoteHealth() {
  const uint64_t changes = net_.num_changes() + totals_.troubles;
  if (changes == seen_changes_) return;
  seen_changes_ = changes;
  for (size_t r = 0; r < routers_.size(); ++r) NoteHealthOf(r);
}

void Cluster::NoteHealthOf(int router) {
  if (!HasHealthyPair(router)) last_unhealthy_[router] = world_.now();
  if (!HasHealthyDecode(router)) last_without_decode_[router] = world_.now();
}

// Without prefill workers a decode worker computes prompts itself: none fails for want of a pair.
void Cluster::CheckNotAlone(int router, Time submitted, const absl::Status& status) {
  const bool lacks_pair = absl::StrContains(status.message(), "connected");
  const bool healthy = last_without_decode_[router] + milliseconds(50) < submitted &&
                       HasHealthyDecode(router);
  if (scenario_.has_only_losses() && lacks_pair && healthy) {
    Violation(absl::StrCat("a request failed beside a healthy decode worker: ", status.ToString()));
  }
}

void Cluster::OnFailure(int router, Time submitted, const absl::Status& status) {
  if (absl::IsResourceExhausted(status) && scenario_.small_caps) return;
  ++totals_.unexplained;
  if (!scenario_.has_faults()) {
    Violation(absl::StrCat("a request failed without a fault: ", status.ToString()));
  }
  // Up to the moment before the request a link may have been cut and be cut still.
  const bool healthy =
      last_unhealthy_[router] + milliseconds(50) < submitted && HasHealthyPair(router);
  if (!healthy) return;
  ++totals_.failed_beside_healthy_pair;
  if (scenario_.has_only_losses()) {
    Violation(absl::StrCat("a request failed beside a healthy pair: ", status.ToString()));
  }
  std::string reason = status.ToString();
  std::ranges::replace_if(
      reason, [](unsigned char c) { return std::isdigit(c); }, '#');
  ++totals_.reasons[reason];
}

bool Cluster::IsQuiet() const {
  return clients_.num_live() == 0 &&
         std::ranges::all_of(routers_, [](const auto& r) { return r->AuditQuiet().empty(); }) &&
         std::ranges::all_of(workers_, [](const auto& w) { return w->AuditQuiet().empty(); });
}

void Cluster::CheckQuiet() {
  for (size_t r = 0; r < routers_.size(); ++r) {
    if (std::string bad = routers_[r]->AuditQuiet(); !bad.empty()) Violation(bad);
  }
  for (const auto& worker : workers_) {
    if (std::string bad = worker->AuditQuiet(); !bad.empty()) {
      Violation(absl::StrCat(bad, " (column ", worker->column(), ")"));
    }
  }
}

// ---- Running -----------------------------------------------------------------------------------

bool Cluster::RunOne(Time limit) {
  const int64_t kMaxEvents = scenario_.prefill_tp.empty() ? 300'000 : 3'000'000;
  try {
    if (!violation_.empty() || !world_.RunOne(limit)) return false;
    Check();
  } catch (const std::exception& error) {
    Violation(absl::StrCat("exception: ", error.what()));
  }
  if (world_.num_events() > kMaxEvents) Violation("the cluster does not come to rest");
  return violation_.empty();
}

bool Cluster::RunUntil(Time limit) {
  while (RunOne(limit)) continue;
  if (violation_.empty()) world_.AdvanceTo(limit);
  return violation_.empty();
}

void Cluster::SubmitAll() {
  Time at{};
  for (int32_t i = 0; i < scenario_.num_requests; ++i) {
    at += world_.Micros(0, scenario_.submit_gap / std::chrono::microseconds(1));
    const int router = static_cast<int>(world_.random.Below(routers_.size()));
    world_.At(at, [this, router] {
      NoteHealthOf(router);
      clients_.SubmitDrawn(router);
    });
  }
  for (size_t t = 0; t < kNumTroubles; ++t) ScheduleTrouble(static_cast<Trouble>(t));
  // Long enough for what hangs to be noticed in some seeds.
  const bool is_long = world_.random.Below(3) == 0 || scenario_.prefill_away > Duration::zero();
  const Duration tail = is_long ? seconds(8) : seconds(1);
  if (scenario_.prefill_away > Duration::zero()) {
    const auto half = at.time_since_epoch() / std::chrono::microseconds(2);
    world_.After(world_.Micros(0, half), [this] { PrefillGoes(); });
  }
  RunUntil(at + tail);
}

void Cluster::CancelSequence(const SequenceId& sequence) {
  for (const auto& router : routers_) {
    if (const auto request = router->FindRequest(sequence)) clients_.Cancel(*request);
  }
}

void Cluster::Heal() {
  healed_ = true;
  if (trace_.on()) trace_.Add(world_.now(), -1, "healed");
  world_.rates = {};
  net_.Heal();
  fabric_.Heal();
  for (auto& router : routers_) {
    router->Resume();
    if (!router->up()) router->Start();
  }
  for (auto& worker : workers_) {
    worker->Resume();
    if (!worker->up()) worker->Start();
    worker->runner().EndStall();
  }
  ++totals_.troubles;
}

// Everything has to end within its bounds, and every block to return.
void Cluster::RunToQuiet() {
  const Time requests_by = world_.now() + seconds(60);
  while (violation_.empty() && clients_.num_live() > 0 && world_.now() < requests_by) {
    RunUntil(world_.now() + milliseconds(100));
  }
  if (clients_.num_live() > 0) Violation("I6: " + clients_.FirstLive() + " does not end");
  // T_hang + T_abort + one step; a transfer's abort may take its 4 s, and a drain its limit.
  const Time quiet_by = world_.now() + seconds(12);
  while (violation_.empty() && !IsQuiet() && world_.now() < quiet_by) {
    RunUntil(world_.now() + milliseconds(100));
  }
  if (violation_.empty()) CheckQuiet();
}

// A request after everything has healed: is anything of the trouble still counted against a worker?
void Cluster::Probe() {
  // Links are up again, refusals and blames are forgotten, and who drained has come back. A Watch
  // that fell silent is noticed after some seconds.
  RunUntil(world_.now() + seconds(scenario_.control_bytes ? 8 : 4));
  for (size_t r = 0; r < routers_.size() && violation_.empty(); ++r) {
    ValidRequest request;
    request.prompts = {{2, 3, 5, 7}};
    request.sampling.max_tokens = 4;
    request.timeout = seconds(600);
    routers_[r]->ExpectIdleWorkers(true);
    const uint64_t key = clients_.Submit(r, request);
    RunUntil(world_.now() + milliseconds(200));
    routers_[r]->ExpectIdleWorkers(false);
    const absl::Status* ended = clients_.ended(key);
    if (ended == nullptr || !ended->ok()) Violation("the healed cluster answers no request");
  }
}

std::string Cluster::Run() {
  StartAll();
  RunUntil(Time(milliseconds(30)));
  SubmitAll();
  if (violation_.empty()) Heal();
  if (violation_.empty()) RunToQuiet();
  if (violation_.empty()) Probe();
  if (violation_.empty()) RunToQuiet();
  return violation_;
}

std::string Cluster::Report() const {
  std::string report = trace_.Table();
  for (size_t r = 0; r < routers_.size(); ++r) {
    absl::StrAppend(&report, "R", r, ": ", routers_[r]->DescribeState(), "\n");
  }
  for (size_t w = 0; w < workers_.size(); ++w) {
    absl::StrAppend(&report, "column ", workers_[w]->column(), " incarnation ",
                    workers_[w]->up() ? workers_[w]->Hello().incarnation : 0, ": ",
                    workers_[w]->DescribeState(), "\n");
  }
  return report;
}

Cluster::Totals Cluster::totals() const {
  Totals t = totals_;
  t.staged = fabric_.staged();
  t.nccl = fabric_.nccl();
  t.events = world_.num_events();
  t.ok = clients_.num_ok;
  t.failed = clients_.num_failed;
  t.tokens = clients_.num_tokens;
  t.lost_with_router = clients_.num_lost_with_router;
  for (size_t f = 0; f < kNumFaults; ++f) t.hits[f] = world_.num_hits(static_cast<Fault>(f));
  for (const auto& worker : workers_) t.workers += worker->totals();
  for (const auto& router : routers_) {
    t.router_economy += router->economy();
    const RouterCounters c = router->totals();
    for (int64_t RouterCounters::*field : kRouterCounters) t.routers.*field += c.*field;
  }
  return t;
}

}  // namespace baton::sim
