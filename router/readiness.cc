#include "router/readiness.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <variant>

#include "common/telemetry/log.h"

namespace baton {
namespace {

constexpr Duration kIdle = std::chrono::seconds(10);  // Without a proof.
constexpr Duration kRetry = std::chrono::milliseconds(200);
constexpr Duration kTimeout = std::chrono::seconds(10);
constexpr int32_t kProbeTokens = 2;  // One from prefill, one from decode.

bool Overlap(const std::set<Incarnation>& a, const std::set<Incarnation>& b) {
  return std::any_of(a.begin(), a.end(), [&b](Incarnation one) { return b.contains(one); });
}

}  // namespace

// The healthy workers that compute prompts, or that decode.
struct Readiness::Side {
  std::set<Incarnation> healthy;
  Incarnation latest = 0;  // Of them, the last one that took part in a token.
  Time last_token{};
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
    side.healthy.insert(worker.hello.incarnation);
    // A decode worker takes nothing while one waits for blocks; each that runs has a block left.
    const WorkerStatus& status = worker.status;
    const bool has_blocks =
        status.preempted == 0 && status.blocks.free + status.blocks.cached > status.running;
    const bool has_room = computes ? status.queued_tokens == 0 : has_blocks;
    side.full = side.full && !has_room;
    const Time last_token = is_alone ? worker.last_prompt : worker.last_token;
    if (last_token <= side.last_token) continue;
    side.last_token = last_token;
    side.latest = worker.hello.incarnation;
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
  asked_ = {prefill.healthy, decode.healthy};
  asked_at_ = now;
  next_probe_ = now + kRetry;
  Ask();
}

bool Readiness::IsProven(const Side& prefill, const Side& decode) const {
  return Overlap(prefill.healthy, proven_.prefill) && Overlap(decode.healthy, proven_.decode);
}

// Tokens of clients prove what a probe would. Answers in full flow prove their decode workers only.
void Readiness::TakeTokens(const Side& prefill, const Side& decode) {
  const Time token = std::min(prefill.last_token, decode.last_token);
  if (token <= proven_at_) return;
  proven_at_ = token;
  if (!IsProven(prefill, decode)) proven_ = {};
  proven_.prefill.insert(prefill.latest);
  proven_.decode.insert(decode.latest);
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
    proven_ = asked_;
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
