#include "common/worker/device_metrics.h"

#include <algorithm>
#include <string>
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

void ExportMemory(const LoadedModel& model, Metrics* metrics) {
  metrics->Export("baton_device_memory_bytes", "Memory of each rank's GPU, free or not.",
                  MetricKind::kGauge, [&model] {
                    std::vector<MetricSample> samples;
                    for (const LoadedRank& rank : model.ranks) {
                      samples.push_back({.labels = {{"rank", std::to_string(rank.shape.rank)}},
                                         .value = static_cast<double>(rank.memory.total)});
                    }
                    return samples;
                  });
  metrics->Export(
      "baton_device_memory_used_bytes", "Of it, what this worker has allocated, by what for.",
      MetricKind::kGauge, [&model] {
        std::vector<MetricSample> samples;
        for (const LoadedRank& rank : model.ranks) {
          const auto add = [&](const char* by, int64_t bytes) {
            samples.push_back({.labels = {{"rank", std::to_string(rank.shape.rank)}, {"by", by}},
                               .value = static_cast<double>(bytes)});
          };
          add("weights", rank.memory.weights);
          add("kv_cache", rank.memory.kv_cache);
          add("workspace", rank.memory.workspace);
        }
        return samples;
      });
}

void ExportRanks(const LoadedModel& model, Metrics* metrics) {
  metrics->Export(
      "baton_rank_memory_bytes", "Of each rank, by what takes it.", MetricKind::kGauge, [&model] {
        std::vector<MetricSample> samples;
        for (const LoadedRank& rank : model.ranks) {
          const auto add = [&](const char* by, int64_t bytes) {
            samples.push_back({.labels = {{"rank", std::to_string(rank.shape.rank)}, {"by", by}},
                               .value = static_cast<double>(bytes)});
          };
          add("weights", rank.weight_bytes);
          add("kv_cache", rank.cache->num_blocks() * BlockBytes(rank.cache->layout()));
        }
        return samples;
      });
  if (model.group == nullptr) return;
  metrics->Export("baton_rank_exchange_wait_seconds_total",
                  "Waited by ranks for each other's sums, by all of them together.",
                  MetricKind::kCounter, [group = model.group] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = ToSeconds(group->waited())}};
                  });
}

}  // namespace baton
