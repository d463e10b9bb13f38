#include "common/worker/backlog_metrics.h"

#include <utility>
#include <vector>

namespace baton {
namespace {

double BacklogSeconds(const WorkerStatus& status) {
  if (status.tokens_per_s <= 0) return 0;
  return static_cast<double>(status.queued_tokens) / static_cast<double>(status.tokens_per_s);
}

}  // namespace

void ExportBacklog(std::function<WorkerStatus()> status, Metrics* metrics) {
  const auto add = [&](const char* name, const char* help, double (*read)(const WorkerStatus&)) {
    metrics->Export(name, help, MetricKind::kGauge, [status, read] {
      return std::vector<MetricSample>{{.labels = {}, .value = read(status())}};
    });
  };
  add("baton_queued_prompt_tokens",
      "Tokens that wait to be computed: of prompts, and of what is computed again.",
      [](const WorkerStatus& s) { return static_cast<double>(s.queued_tokens); });
  add("baton_step_tokens_per_second", "Tokens that full steps computed lately; 0: none yet.",
      [](const WorkerStatus& s) { return static_cast<double>(s.tokens_per_s); });
  add("baton_prompt_backlog_seconds",
      "Time that those tokens take at that rate; 0 while the rate is unknown.", BacklogSeconds);
}

}  // namespace baton
