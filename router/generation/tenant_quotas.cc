#include "router/generation/tenant_quotas.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "router/error.h"

namespace baton {
namespace {

// How long until a bucket has `missing` more.
Duration Until(double missing, double per_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(missing / per_s));
}

}  // namespace

void TenantQuotas::Bucket::Refill(double per_s, Time now) {
  if (now > at) taken = std::max(0.0, taken - per_s * ToSeconds(now - at));
  at = std::max(at, now);
  NoteLow();
}

void TenantQuotas::Bucket::Take(double amount) {
  taken += amount;
  lows.push_back({at, taken});
}

// What a full bucket has no room for is lost: had the amount not been taken, refills since then
// would have been lost from the moment on at which `taken` came down to the amount.
void TenantQuotas::Bucket::GiveBack(double amount, Time taken_at) {
  auto from = std::ranges::upper_bound(lows, taken_at, {}, &Low::since);
  if (from == lows.begin()) return;
  --from;
  const double back = std::min(amount, from->taken);
  taken -= back;
  for (auto it = from; it != lows.end(); ++it) it->taken -= back;
  const auto higher = std::lower_bound(lows.begin(), from, from->taken,
                                       [](const Low& low, double t) { return low.taken < t; });
  from->since = higher->since;
  lows.erase(higher, from);
}

void TenantQuotas::Bucket::NoteLow() {
  std::optional<Time> since;
  for (; !lows.empty() && lows.back().taken >= taken; lows.pop_back()) since = lows.back().since;
  if (since.has_value()) lows.push_back({*since, taken});
}

const TenantLimits& TenantQuotas::LimitsOf(const std::string& tenant) const {
  const auto it = named_.find(tenant);
  return it == named_.end() ? others_ : it->second;
}

void TenantQuotas::Account::Refill(const TenantLimits& limits, Time now) {
  requests.Refill(limits.requests_per_s, now);
  tokens.Refill(static_cast<double>(limits.tokens_per_min) / 60, now);
}

// Of an account that is refilled.
absl::Status TenantQuotas::CheckAccount(const TenantLimits& limits, const Account& account,
                                        int64_t tokens) {
  if (limits.concurrency > 0 && account.running >= limits.concurrency) {
    return QuotaExceeded(absl::StrFormat(
        "You have %d requests running, which is the most allowed; wait for one to end.",
        limits.concurrency));
  }
  if (limits.requests_per_s > 0 && account.requests.taken + 1 > limits.burst) {
    return QuotaExceeded(
        absl::StrFormat("Your limit is %g requests a second, and %g at once; wait.",
                        limits.requests_per_s, limits.burst),
        Until(account.requests.taken + 1 - limits.burst, limits.requests_per_s));
  }
  const auto most_tokens = static_cast<double>(limits.tokens_per_min);
  const double missing = account.tokens.taken + static_cast<double>(tokens) - most_tokens;
  if (limits.tokens_per_min > 0 && missing > 0) {
    return QuotaExceeded(
        absl::StrFormat("Prompt and max_tokens make %d tokens; of your %d a minute %d are left.",
                        tokens, limits.tokens_per_min,
                        static_cast<int64_t>(most_tokens - account.tokens.taken)),
        Until(missing, most_tokens / 60));
  }
  return absl::OkStatus();
}

absl::Status TenantQuotas::Check(const std::string& tenant, Time now) {
  const TenantLimits& limits = LimitsOf(tenant);
  absl::MutexLock lock(&mutex_);
  const auto it = accounts_.find(tenant);
  if (it == accounts_.end()) return absl::OkStatus();
  it->second.Refill(limits, now);
  return CheckAccount(limits, it->second, /*tokens=*/1);
}

absl::Status TenantQuotas::Acquire(const std::string& tenant, int64_t tokens, Time now) {
  const TenantLimits& limits = LimitsOf(tenant);
  if (limits.tokens_per_min > 0 && tokens > limits.tokens_per_min) {
    return InvalidField(
        "max_tokens",
        absl::StrFormat("prompt and max_tokens make %d tokens; your limit is %d a minute: set a "
                        "smaller max_tokens.",
                        tokens, limits.tokens_per_min));
  }
  absl::MutexLock lock(&mutex_);
  Account& account = accounts_[tenant];
  account.Refill(limits, now);
  RETURN_IF_ERROR(CheckAccount(limits, account, tokens));
  ++account.running;
  if (limits.requests_per_s > 0) account.requests.taken += 1;
  if (limits.tokens_per_min > 0) account.tokens.Take(static_cast<double>(tokens));
  return absl::OkStatus();
}

void TenantQuotas::Release(const std::string& tenant, int64_t unused_tokens, Time acquired,
                           Time now) {
  absl::MutexLock lock(&mutex_);
  Account& account = accounts_.at(tenant);
  BATON_CHECK(account.running > 0 && unused_tokens >= 0);
  account.tokens.Refill(static_cast<double>(LimitsOf(tenant).tokens_per_min) / 60, now);
  account.tokens.GiveBack(static_cast<double>(unused_tokens), acquired);
  if (--account.running == 0) account.tokens.lows.clear();
}

}  // namespace baton
