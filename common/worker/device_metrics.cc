#include "common/worker/device_metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace baton {

void BusyTime::Begin(Time now) {
  absl::MutexLock lock(&mutex_);
  is_busy_ = true;
  begun_ = now;
}

void BusyTime::End(Time now) {
  absl::MutexLock lock(&mutex_);
  ended_ = TotalAt(now);
  is_busy_ = false;
}

// `now` may be older than what another thread told meanwhile.
Duration BusyTime::TotalAt(Time now) const {
  return is_busy_ ? ended_ + std::max(now - begun_, Duration::zero()) : ended_;
}

Duration BusyTime::Total(Time now) const {
  absl::MutexLock lock(&mutex_);
  return TotalAt(now);
}

double BusyTime::Share(Time now) {
  absl::MutexLock lock(&mutex_);
  const Duration total = TotalAt(now), busy = total - seen_, time = now - looked_at_;
  seen_ = total;
  looked_at_ = now;
  return time > Duration::zero() ? std::min(ToSeconds(busy) / ToSeconds(time), 1.0) : 0;
}

void ExportBusyTime(BusyTime* busy, std::function<Time()> now, Metrics* metrics) {
  metrics->Export("baton_device_busy_seconds_total", "Time with a step under way.",
                  MetricKind::kCounter, [busy, now] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = ToSeconds(busy->Total(now()))}};
                  });
  metrics->Export("baton_device_utilization_ratio",
                  "Share of the time since the last scrape with a step under way.",
                  MetricKind::kGauge, [busy, now = std::move(now)] {
                    return std::vector<MetricSample>{{.labels = {}, .value = busy->Share(now())}};
                  });
}

void ExportMemory(const ModelMemory& memory, Metrics* metrics) {
  metrics->Export("baton_device_memory_bytes", "Memory of the GPU, free or not.",
                  MetricKind::kGauge, [memory] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = static_cast<double>(memory.total)}};
                  });
  metrics->Export(
      "baton_device_memory_used_bytes", "Of it, what this worker has allocated, by what for.",
      MetricKind::kGauge, [memory] {
        const auto sample = [](const char* by, int64_t bytes) {
          return MetricSample{.labels = {{"by", by}}, .value = static_cast<double>(bytes)};
        };
        return std::vector<MetricSample>{sample("weights", memory.weights),
                                         sample("kv_cache", memory.kv_cache),
                                         sample("workspace", memory.workspace)};
      });
}

}  // namespace baton
