#pragma once

#include <functional>

#include "absl/synchronization/mutex.h"
#include "common/base/time.h"
#include "common/model/load_model.h"
#include "common/telemetry/metrics.h"

namespace baton {

// How long a device has had a step to compute. Thread-safe; times never go back.
class BusyTime {
 public:
  explicit BusyTime(Time now) : looked_at_(now) {}

  // Of one step at a time.
  void Begin(Time now);
  void End(Time now);

  // In all, with the step under way.
  Duration Total(Time now) const;
  // Of the time since the last look, in [0, 1].
  double Share(Time now);

 private:
  Duration TotalAt(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  Duration ended_ ABSL_GUARDED_BY(mutex_){};  // Of the steps that have.
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false;
  Time begun_ ABSL_GUARDED_BY(mutex_){};
  Time looked_at_ ABSL_GUARDED_BY(mutex_);
  Duration seen_ ABSL_GUARDED_BY(mutex_){};  // By that look.
};

// baton_device_busy_seconds_total, whose rate is the share of any time, and
// baton_device_utilization_ratio, the share since the last scrape. `busy` outlives the scrapes.
void ExportBusyTime(BusyTime* busy, std::function<Time()> now, Metrics* metrics);

// baton_device_memory_bytes of each rank's device, and baton_device_memory_used_bytes by what takes
// it: all of it was allocated at load. `model` outlives the scrapes.
void ExportMemory(const LoadedModel& model, Metrics* metrics);

// baton_rank_memory_bytes of each rank, by what takes it, and where ranks wait for each other's
// sums baton_rank_exchange_wait_seconds_total. `model` outlives the scrapes.
void ExportRanks(const LoadedModel& model, Metrics* metrics);

}  // namespace baton
