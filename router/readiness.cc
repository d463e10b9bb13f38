#include "router/readiness.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "common/telemetry/log.h"

namespace baton {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(200);
constexpr Duration kTimeout = std::chrono::seconds(10);
constexpr int32_t kProbeTokens = 2;  // One from prefill, one from decode.

// The healthy workers of one role.
std::set<Incarnation> Healthy(const RouterView& view, Role role) {
  std::set<Incarnation> healthy;
  for (const WorkerView& worker : view.workers) {
    if (worker.role == role && worker.healthy) healthy.insert(worker.hello.incarnation);
  }
  return healthy;
}

bool Overlap(const std::set<Incarnation>& a, const std::set<Incarnation>& b) {
  return std::any_of(a.begin(), a.end(), [&b](Incarnation one) { return b.contains(one); });
}

}  // namespace

// Good when it ended well after both tokens.
class Readiness::Probe : public ResponseSink {
 public:
  explicit Probe(std::shared_ptr<Readiness> owner) : owner_(std::move(owner)) {}

  void OnEvent(ClientEvent event) override {
    if (const auto* tokens = std::get_if<ChoiceTokens>(&event)) {
      num_tokens_ += static_cast<int32_t>(tokens->outputs.size());
    } else if (const auto* ended = std::get_if<RequestEnded>(&event)) {
      const bool ok = ended->status.ok() && num_tokens_ == kProbeTokens;
      if (!ok) Log(LogLevel::kWarning, "readiness probe failed", {{"status", ended->status}});
      owner_->Ended(ok);
    }
  }

 private:
  const std::shared_ptr<Readiness> owner_;
  int32_t num_tokens_ = 0;
};

void Readiness::OnView(const RouterView& view, Time now) {
  const std::set<Incarnation> prefill = Healthy(view, Role::kPrefill);
  const std::set<Incarnation> decode = Healthy(view, Role::kDecode);
  {
    absl::MutexLock lock(&mutex_);
    const bool proven = Overlap(prefill, proven_) && Overlap(decode, proven_);
    if (proven != ready_) {
      Log(LogLevel::kInfo, proven ? "ready" : "not ready",
          {{"prefill_workers", prefill.size()}, {"decode_workers", decode.size()}});
      if (on_change_) on_change_(proven);
    }
    ready_ = proven;
    if (proven || probing_ || now < next_probe_ || prefill.empty() || decode.empty()) return;
    probing_ = true;
    asked_ = prefill;
    asked_.insert(decode.begin(), decode.end());
  }
  next_probe_ = now + kRetry;
  Send();
}

void Readiness::Send() {
  // Any token will do that every model has.
  ValidRequest probe;
  probe.label = "readiness-probe";
  probe.prompts = {{0}};
  probe.sampling.temperature = 0;
  probe.sampling.max_tokens = kProbeTokens;
  probe.sampling.ignore_eos = true;
  probe.timeout = kTimeout;
  if (!frontend_->Submit(std::move(probe), std::make_shared<Probe>(shared_from_this())).ok()) {
    Ended(false);
  }
}

void Readiness::Ended(bool ok) {
  absl::MutexLock lock(&mutex_);
  probing_ = false;
  if (ok) proven_ = asked_;
}

}  // namespace baton
