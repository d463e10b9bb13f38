#include "router/readiness.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <utility>
#include <variant>

#include "common/telemetry/log.h"

namespace baton {
namespace {

constexpr Duration kIdle = std::chrono::seconds(10);  // Without a proof.
constexpr Duration kRetry = std::chrono::milliseconds(200);
constexpr Duration kTimeout = std::chrono::seconds(10);
constexpr int32_t kProbeTokens = 2;  // One from prefill, one from decode.

std::set<Incarnation> NamesOf(const std::map<Incarnation, uint64_t>& workers) {
  std::set<Incarnation> names;
  for (const auto& [name, pair] : workers) names.insert(name);
  return names;
}

}  // namespace

// The healthy workers that compute prompts, or that decode.
struct Readiness::Side {
  std::map<Incarnation, uint64_t> healthy;  // And what they pair by.
  struct Latest {
    Incarnation worker = 0;
    Time token{};
  };
  std::map<uint64_t, Latest>
      latest;         // Of those that pair alike, the last that took part in a token.
  Time last_token{};  // Of all.
  bool full = true;  // None of them has anything to spare for a probe.
};

// Proves when it ended well after both tokens.
class Readiness::Probe : public ResponseSink {
 public:
  explicit Probe(std::shared_ptr<Readiness> owner) : owner_(std::move(owner)) {}

  void OnEvent(ClientEvent event) override {
    if (const auto* tokens = std::get_if<ChoiceTokens>(&event)) {
      num_tokens_ += static_cast<int32_t>(tokens->outputs.size());
    } else if (const auto* ended = std::get_if<RequestEnded>(&event)) {
      const Outcome outcome = OutcomeOf(ended->status);
      if (outcome != Outcome::kProven) {
        Log(LogLevel::kWarning, "readiness probe failed", {{"status", ended->status}});
      }
      owner_->Ended(outcome);
    }
  }

 private:
  Outcome OutcomeOf(const absl::Status& status) const {
    if (absl::IsResourceExhausted(status)) return Outcome::kRefused;
    if (absl::IsDeadlineExceeded(status)) return Outcome::kTooLate;
    return status.ok() && num_tokens_ == kProbeTokens ? Outcome::kProven : Outcome::kFailed;
  }

  const std::shared_ptr<Readiness> owner_;
  int32_t num_tokens_ = 0;
};

Readiness::Side Readiness::HealthyOf(const RouterView& view, Role role) {
  Side side;
  for (const WorkerView& worker : view.workers) {
    const bool is_alone = role == Role::kPrefill && worker.alone;
    const bool computes = worker.role == Role::kPrefill || is_alone;
    if ((worker.role != role && !is_alone) || !worker.healthy) continue;
    side.healthy[worker.hello.incarnation] = worker.pair;
    // A decode worker takes nothing while one waits for blocks; each that runs has a block left.
    const WorkerStatus& status = worker.status;
    const int32_t num_entries =
        (status.blocks.free + status.blocks.cached) / worker.hello.layer_groups;
    const bool has_blocks = status.preempted == 0 && num_entries > status.running;
    const bool has_room = computes ? status.queued_tokens == 0 : has_blocks;
    side.full = side.full && !has_room;
    const Time last_token = is_alone ? worker.last_prompt : worker.last_token;
    Side::Latest& latest = side.latest[worker.pair];
    if (last_token <= latest.token) continue;
    latest = {.worker = worker.hello.incarnation, .token = last_token};
    side.last_token = std::max(side.last_token, last_token);
  }
  return side;
}

void Readiness::OnView(const RouterView& view, Time now) {
  if (closed_) return;
  const Side prefill = HealthyOf(view, Role::kPrefill);
  const Side decode = HealthyOf(view, Role::kDecode);
  TakeTokens(prefill, decode);
  TakeOutcome(prefill, decode, now);
  const bool proven = IsProven(prefill, decode);
  if (proven != ready_) {
    Log(LogLevel::kInfo, proven ? "ready" : "not ready",
        {{"computing_prompts", prefill.healthy.size()}, {"decoding", decode.healthy.size()}});
    if (on_change_) on_change_(proven);
  }
  ready_ = proven;
  const bool is_due = !proven || now - proven_at_ >= kIdle;
  if (!is_due || probing_ || closed_ || now < next_probe_) return;
  if (prefill.healthy.empty() || decode.healthy.empty()) return;
  probing_ = true;
  asked_ = {NamesOf(prefill.healthy), NamesOf(decode.healthy)};
  asked_at_ = now;
  next_probe_ = now + kRetry;
  Ask();
}

// Two that pair are left of each side.
bool Readiness::IsProven(const Side& prefill, const Side& decode) const {
  std::set<uint64_t> pairs;
  for (const auto& [name, pair] : prefill.healthy) {
    if (proven_.prefill.contains(name)) pairs.insert(pair);
  }
  return std::ranges::any_of(decode.healthy, [&](const auto& worker) {
    return proven_.decode.contains(worker.first) && pairs.contains(worker.second);
  });
}

// Tokens of clients prove what a probe would. Answers in full flow prove their decode workers only.
void Readiness::TakeTokens(const Side& prefill, const Side& decode) {
  const Time before = proven_at_;
  for (const auto& [pair, computes] : prefill.latest) {
    const auto decodes = decode.latest.find(pair);
    if (decodes == decode.latest.end()) continue;
    const Time token = std::min(computes.token, decodes->second.token);
    if (token <= before) continue;
    proven_at_ = std::max(proven_at_, token);
    if (!IsProven(prefill, decode)) proven_ = {};
    proven_.prefill.insert(computes.worker);
    proven_.decode.insert(decodes->second.worker);
  }
}

void Readiness::TakeOutcome(const Side& prefill, const Side& decode, Time now) {
  std::optional<Outcome> outcome;
  {
    absl::MutexLock lock(&mutex_);
    outcome.swap(outcome_);
  }
  if (!outcome) return;
  probing_ = false;
  // It goes before every client's request: answers that go on do not excuse it while the workers
  // have room for another.
  const bool is_full = (prefill.full || decode.full) && now - decode.last_token < kIdle;
  const bool was_not_tried =
      is_full && (*outcome == Outcome::kRefused || *outcome == Outcome::kTooLate);
  if (*outcome == Outcome::kProven) {
    // Beside what clients' tokens have proven meanwhile, if that still holds.
    if (!IsProven(prefill, decode)) proven_ = {};
    proven_.prefill.insert(asked_.prefill.begin(), asked_.prefill.end());
    proven_.decode.insert(asked_.decode.begin(), asked_.decode.end());
    proven_at_ = now;
  } else if (!was_not_tried && proven_at_ <= asked_at_) {
    proven_ = {};
  }
}

void Readiness::Ask() {
  // Any token will do that every model has.
  ValidRequest probe;
  probe.label = "readiness-probe";
  probe.prompts = {{0}};
  probe.sampling.temperature = 0;
  probe.sampling.max_tokens = kProbeTokens;
  probe.sampling.ignore_eos = true;
  probe.priority = std::numeric_limits<int32_t>::min();  // Before every client's.
  probe.timeout = kTimeout;
  const absl::Status status =
      frontend_->Submit(std::move(probe), std::make_shared<Probe>(shared_from_this())).status();
  if (!status.ok()) Ended(absl::IsResourceExhausted(status) ? Outcome::kRefused : Outcome::kFailed);
}

void Readiness::Ended(Outcome outcome) {
  absl::MutexLock lock(&mutex_);
  outcome_ = outcome;
}

}  // namespace baton
