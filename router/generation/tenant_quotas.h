#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/time.h"

namespace baton {

// What one tenant may use of one router. 0: no limit.
struct TenantLimits {
  double requests_per_s = 0;
  double burst = 0;            // Requests at once, beside requests_per_s; >= 1 where that is set.
  int64_t tokens_per_min = 0;  // Prompt and max_tokens; what an answer leaves of them comes back.
  int64_t tokens_per_day = 0;  // Likewise, from 00:00 UTC on.
  int32_t concurrency = 0;     // Requests at a time, waiting or running.
  int32_t weight = 1;          // Its part, beside other tenants', of what all wait for.
  int32_t max_priority = 0;    // A request's priority below it is raised to it.
  bool operator==(const TenantLimits&) const = default;
};

// The steady clock, for what fills as time goes on, and the wall clock, for days.
struct QuotaTime {
  Time steady{};
  int64_t unix_s = 0;
};

// What a request that runs may use.
struct Reservation {
  std::string tenant;
  int64_t tokens = 0;
  int64_t day = 0;  // Whose tokens they are.
  Time acquired{};
  bool is_rated = false;  // It took a place among its tenant's requests a second.
};

// Counts what tenants use: requests and tokens in buckets that fill as time goes on, so that the
// sums over any time are exact, tokens of the day, and requests that run. Counts of this process
// alone: they begin anew with it. Thread-safe.
class TenantQuotas {
 public:
  // `others`: of tenants that `named` does not name.
  TenantQuotas(std::map<std::string, TenantLimits> named, TenantLimits others)
      : others_(others), named_(std::move(named)) {}

  TenantLimits LimitsOf(const std::string& tenant) const;

  // New limits for what comes from now on. What was counted stays counted.
  void SetLimits(std::map<std::string, TenantLimits> named);

  // What Acquire would say of a request of which nothing else is known yet; nothing is counted.
  absl::Status Check(const std::string& tenant, QuotaTime now);
  // Counts a request that may need so many tokens, until Release. RESOURCE_EXHAUSTED of the
  // tenant's own doing (IsQuotaExceeded) says which limit, and when to try again; INVALID_ARGUMENT:
  // it needs more tokens than are ever there. Then nothing is counted.
  absl::StatusOr<Reservation> Acquire(const std::string& tenant, int64_t tokens, QuotaTime now);
  // The request has ended; so many of its tokens were not used. Of a minute's comes back what time
  // has not given back meanwhile.
  void Release(const Reservation& reservation, int64_t unused_tokens, QuotaTime now);
  // It was refused and nothing was done for it: it costs nothing. All of its tokens come back, and
  // likewise its place among the requests of a second.
  void Undo(const Reservation& reservation, QuotaTime now);

 private:
  // Full at first.
  struct Bucket {
    double taken = 0;
    Time at{};  // When `taken` was true.
    // Of each moment the lowest that `taken` was since then; both rise.
    struct Low {
      Time since;
      double taken;
    };
    std::vector<Low> lows;

    void Refill(double most, double per_s, Time now);
    void Take(double amount);
    // As much of it as would not be back by now if it had not been taken at that time.
    void GiveBack(double amount, Time taken_at);
    void NoteLow();
  };
  struct Day {
    int64_t number = 0;  // Since 1970.
    double taken = 0;    // With what is held.
    double held = 0;     // By requests that run.
    void Turn(int64_t today);
  };
  struct Account {
    int32_t running = 0;
    Bucket requests;
    Bucket tokens;
    Day day;
    void Refill(const TenantLimits& limits, QuotaTime now);
  };
  static absl::Status CheckDay(const TenantLimits& limits, int64_t tokens, QuotaTime now,
                               Account& account);
  static absl::Status CheckBuckets(const TenantLimits& limits, int64_t tokens, QuotaTime now,
                                   Account& account);
  const TenantLimits& Limits(const std::string& tenant) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void End(const Reservation& reservation, int64_t unused_tokens, double unused_requests,
           QuotaTime now);

  const TenantLimits others_;
  mutable absl::Mutex mutex_;
  std::map<std::string, TenantLimits> named_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);  // As many as keys had names.
};

}  // namespace baton
