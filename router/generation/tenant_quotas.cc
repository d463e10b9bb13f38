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

constexpr int64_t kDayS = 86'400;

// How long until a bucket has `missing` more.
Duration Until(double missing, double per_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(missing / per_s));
}

int64_t DayOf(QuotaTime now) { return now.unix_s / kDayS; }

absl::Status CheckSize(int64_t tokens, int64_t most, const char* period) {
  if (most == 0 || tokens <= most) return absl::OkStatus();
  return InvalidField(
      "max_tokens",
      absl::StrFormat("prompt and max_tokens make %d tokens; your limit is %d a %s: set a "
                      "smaller max_tokens.",
                      tokens, most, period));
}

}  // namespace

// After a limit was lowered no more is missing than the bucket holds now.
void TenantQuotas::Bucket::Refill(double most, double per_s, Time now) {
  taken = std::min(taken, most);
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

void TenantQuotas::Account::Refill(const TenantLimits& limits, QuotaTime now) {
  const auto most_tokens = static_cast<double>(limits.tokens_per_min);
  requests.Refill(limits.burst, limits.requests_per_s, now.steady);
  tokens.Refill(most_tokens, most_tokens / 60, now.steady);
}

// A clock that steps back over midnight gives nothing; one that was days ahead does not keep what
// it said.
void TenantQuotas::Day::Turn(int64_t today) {
  if (today == number || today == number - 1) return;
  *this = {.number = today};
}

const TenantLimits& TenantQuotas::Limits(const std::string& tenant) const {
  const auto it = named_.find(tenant);
  return it == named_.end() ? others_ : it->second;
}

TenantLimits TenantQuotas::LimitsOf(const std::string& tenant) const {
  absl::ReaderMutexLock lock(&mutex_);
  return Limits(tenant);
}

void TenantQuotas::SetLimits(std::map<std::string, TenantLimits> named) {
  absl::MutexLock lock(&mutex_);
  named_ = std::move(named);
}

absl::StatusOr<Reservation> TenantQuotas::Acquire(const std::string& tenant, int64_t tokens,
                                                  QuotaTime now) {
  absl::MutexLock lock(&mutex_);
  const TenantLimits limits = Limits(tenant);
  RETURN_IF_ERROR(CheckSize(tokens, limits.tokens_per_min, "minute"));
  RETURN_IF_ERROR(CheckSize(tokens, limits.tokens_per_day, "day"));
  Account& account = accounts_[tenant];
  RETURN_IF_ERROR(CheckDay(limits, tokens, now, account));
  RETURN_IF_ERROR(CheckBuckets(limits, tokens, now, account));
  const auto taken = static_cast<double>(tokens);
  ++account.running;
  if (limits.requests_per_s > 0) account.requests.Take(1);
  if (limits.tokens_per_min > 0) account.tokens.Take(taken);
  account.day.taken += taken;
  account.day.held += taken;
  return Reservation{.tenant = tenant,
                     .tokens = tokens,
                     .day = account.day.number,
                     .acquired = account.tokens.at,
                     .is_rated = limits.requests_per_s > 0};
}

absl::Status TenantQuotas::Check(const std::string& tenant, QuotaTime now) {
  absl::MutexLock lock(&mutex_);
  const auto it = accounts_.find(tenant);
  if (it == accounts_.end()) return absl::OkStatus();
  const TenantLimits limits = Limits(tenant);
  RETURN_IF_ERROR(CheckDay(limits, /*tokens=*/1, now, it->second));
  return CheckBuckets(limits, /*tokens=*/1, now, it->second);
}

// Comes first: who is told to wait for a minute's tokens should find the day's.
absl::Status TenantQuotas::CheckDay(const TenantLimits& limits, int64_t tokens, QuotaTime now,
                                    Account& account) {
  Day& day = account.day;
  day.Turn(DayOf(now));
  const auto most = static_cast<double>(limits.tokens_per_day);
  const double wanted = day.taken + static_cast<double>(tokens);
  if (limits.tokens_per_day == 0 || wanted <= most) return absl::OkStatus();
  // What running requests hold may come back at any time.
  const bool is_spent = wanted - day.held > most;
  const auto left = static_cast<int64_t>(std::max(0.0, most - day.taken));
  const std::string what = absl::StrFormat(
      "Prompt and max_tokens make %d tokens; of your %d a day %d are left", tokens,
      limits.tokens_per_day, left);
  if (!is_spent) {
    return WithErrorCode(
        QuotaExceeded(absl::StrFormat("%s, and running requests hold %d: wait for one to end.",
                                      what, static_cast<int64_t>(day.held))),
        "insufficient_quota");
  }
  const std::chrono::seconds until((day.number + 1) * kDayS - now.unix_s);
  return WithErrorCode(
      QuotaExceeded(absl::StrFormat("%s; the next day begins at 00:00 UTC, in %d s.", what,
                                    until.count()),
                    until),
      "insufficient_quota");
}

absl::Status TenantQuotas::CheckBuckets(const TenantLimits& limits, int64_t tokens, QuotaTime now,
                                        Account& account) {
  const auto most_tokens = static_cast<double>(limits.tokens_per_min);
  account.Refill(limits, now);
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

void TenantQuotas::Release(const Reservation& reservation, int64_t unused_tokens, QuotaTime now) {
  End(reservation, unused_tokens, /*unused_requests=*/0, now);
}

void TenantQuotas::Undo(const Reservation& reservation, QuotaTime now) {
  End(reservation, reservation.tokens, /*unused_requests=*/reservation.is_rated ? 1 : 0, now);
}

void TenantQuotas::End(const Reservation& reservation, int64_t unused_tokens,
                       double unused_requests, QuotaTime now) {
  absl::MutexLock lock(&mutex_);
  Account& account = accounts_.at(reservation.tenant);
  BATON_CHECK(account.running > 0 && unused_tokens >= 0);
  const TenantLimits& limits = Limits(reservation.tenant);
  const auto unused = static_cast<double>(unused_tokens);
  account.Refill(limits, now);
  account.tokens.GiveBack(unused, reservation.acquired);
  account.requests.GiveBack(unused_requests, reservation.acquired);
  if (--account.running == 0) {
    account.tokens.lows.clear();
    account.requests.lows.clear();
  }
  account.day.Turn(DayOf(now));
  if (account.day.number != reservation.day) return;  // Of a day that is over.
  account.day.held = std::max(0.0, account.day.held - static_cast<double>(reservation.tokens));
  account.day.taken = std::max(0.0, account.day.taken - unused);
}

}  // namespace baton
