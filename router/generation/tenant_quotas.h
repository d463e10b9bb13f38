#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/time.h"

namespace baton {

// What one tenant may use of one router. 0: no limit.
struct TenantLimits {
  double requests_per_s = 0;
  double burst = 0;            // Requests at once, beside requests_per_s; >= 1 where that is set.
  int64_t tokens_per_min = 0;  // Prompt and max_tokens; what an answer leaves of them comes back.
  int32_t concurrency = 0;     // Requests at a time, waiting or running.
  int32_t weight = 1;          // Its part, beside other tenants', of what all wait for.
  int32_t max_priority = 0;    // A request's priority below it is raised to it.
  bool operator==(const TenantLimits&) const = default;
};

// Counts what tenants use: requests and tokens in buckets that fill as time goes on, so that the
// sums over any time are exact, and requests that run. Thread-safe.
class TenantQuotas {
 public:
  // `others`: of tenants that `named` does not name.
  TenantQuotas(std::map<std::string, TenantLimits> named, TenantLimits others)
      : named_(std::move(named)), others_(others) {}

  const TenantLimits& LimitsOf(const std::string& tenant) const;

  // What Acquire would say of a request of which nothing else is known yet; nothing is counted.
  absl::Status Check(const std::string& tenant, Time now);
  // Counts a request that may need so many tokens, until Release. RESOURCE_EXHAUSTED of the
  // tenant's own doing (IsQuotaExceeded) says which limit, and when to try again; INVALID_ARGUMENT:
  // it needs more tokens than are ever there. Then nothing is counted.
  absl::Status Acquire(const std::string& tenant, int64_t tokens, Time now);
  // The request that was counted at `acquired` has ended; so many of its tokens were not used. Of
  // them comes back what time has not given back meanwhile.
  void Release(const std::string& tenant, int64_t unused_tokens, Time acquired, Time now);

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

    void Refill(double per_s, Time now);
    void Take(double amount);
    // As much of it as would not be back by now if it had not been taken at that time.
    void GiveBack(double amount, Time taken_at);
    void NoteLow();
  };
  struct Account {
    int32_t running = 0;
    Bucket requests;
    Bucket tokens;
    void Refill(const TenantLimits& limits, Time now);
  };

  static absl::Status CheckAccount(const TenantLimits& limits, const Account& account,
                                   int64_t tokens);

  const std::map<std::string, TenantLimits> named_;
  const TenantLimits others_;
  absl::Mutex mutex_;
  std::map<std::string, Account> accounts_ ABSL_GUARDED_BY(mutex_);  // As many as keys have names.
};

}  // namespace baton
