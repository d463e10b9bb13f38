#include "router/router_metrics.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "common/process/command_line.h"

namespace baton {

const char* OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    case absl::StatusCode::kResourceExhausted:
      return "overloaded";
    case absl::StatusCode::kUnavailable:
      return "unavailable";
    case absl::StatusCode::kInvalidArgument:
      return "invalid";
    default:
      return "error";
  }
}

RouterMetrics::RouterMetrics(const RouterService* service)
    : metrics_("router", kVersion),
      ttft_(metrics_.AddHistogram("baton_request_ttft_seconds", "Submit to first token.", {},
                                  DoublingBuckets(0.001, 18))),
      inter_token_(metrics_.AddHistogram("baton_request_inter_token_latency_seconds",
                                         "Between two tokens of a choice.", {},
                                         DoublingBuckets(0.0005, 16))),
      e2e_(metrics_.AddHistogram("baton_request_e2e_seconds", "Submit to end.", {},
                                 DoublingBuckets(0.001, 22))) {
  metrics_.Export("baton_requests_total", "Requests that ended.", MetricKind::kCounter, [this] {
    absl::MutexLock lock(&mutex_);
    std::vector<MetricSample> samples;
    for (const auto& [outcome, count] : outcomes_) {
      samples.push_back({.labels = {{"outcome", outcome}}, .value = static_cast<double>(count)});
    }
    return samples;
  });
  metrics_.Export(
      "baton_tokens_total", "Tokens of requests that ended.", MetricKind::kCounter, [this] {
        return std::vector<MetricSample>{
            {.labels = {{"kind", "prompt"}}, .value = static_cast<double>(prompt_tokens_)},
            {.labels = {{"kind", "completion"}}, .value = static_cast<double>(completion_tokens_)}};
      });
  ExportNode(service);
}

void RouterMetrics::ExportNode(const RouterService* service) {
  const auto add = [this](const char* name, const char* help, MetricKind kind,
                          const MetricLabels& labels, std::function<double()> read) {
    metrics_.Export(name, help, kind, [labels, read] {
      return std::vector<MetricSample>{{.labels = labels, .value = read()}};
    });
  };
  add("baton_requests_waiting", "Requests that wait, by what for.", MetricKind::kGauge,
      {{"stage", "queue"}},
      [service] { return static_cast<double>(service->View().queued_requests); });
  add("baton_queued_prompt_tokens", "Prompt tokens of the requests that wait for workers.",
      MetricKind::kGauge, {},
      [service] { return static_cast<double>(service->View().queued_tokens); });
  metrics_.Export("baton_requests_waiting_by_priority",
                  "Requests that wait for workers, by priority: high is below 0, low above.",
                  MetricKind::kGauge, [service] {
                    const std::array<int64_t, 3> waiting = service->View().queued_by_class;
                    std::vector<MetricSample> samples;
                    static constexpr const char* kNames[] = {"high", "normal", "low"};
                    for (size_t i = 0; i < waiting.size(); ++i) {
                      samples.push_back({.labels = {{"priority", kNames[i]}},
                                         .value = static_cast<double>(waiting[i])});
                    }
                    return samples;
                  });
  add("baton_tenants_live", "Tenants with requests that wait or run.", MetricKind::kGauge, {},
      [service] { return static_cast<double>(service->View().live_tenants); });
  add("baton_requests_running", "Requests given to workers.", MetricKind::kGauge,
      {{"role", "router"}},
      [service] { return static_cast<double>(service->View().running_requests); });
  add("baton_ready", "1 when a token has gone end to end through workers that are up.",
      MetricKind::kGauge, {}, [service] { return service->Ready() ? 1.0 : 0.0; });
  add("baton_draining", "1 while it takes nothing new, to stop.", MetricKind::kGauge, {},
      [this] { return draining_ ? 1.0 : 0.0; });
  add("baton_decode_workers_alone",
      "Decode workers that compute prompts themselves: no prefill worker pairs with them.",
      MetricKind::kGauge, {}, [service] {
        const RouterView view = service->View();
        return static_cast<double>(std::ranges::count_if(view.workers, &WorkerView::alone));
      });
  metrics_.Export("baton_workers", "Workers of the list, by role and health.", MetricKind::kGauge,
                  [service] {
                    std::map<std::pair<std::string, std::string>, int> counts;
                    for (const WorkerView& worker : service->View().workers) {
                      ++counts[{worker.role == Role::kPrefill ? "prefill" : "decode",
                                worker.healthy ? "true" : "false"}];
                    }
                    std::vector<MetricSample> samples;
                    for (const auto& [key, count] : counts) {
                      samples.push_back({.labels = {{"role", key.first}, {"healthy", key.second}},
                                         .value = static_cast<double>(count)});
                    }
                    return samples;
                  });
  ExportCounters(service);
}

void RouterMetrics::ExportCounters(const RouterService* service) {
  struct Counter {
    const char* name;
    const char* help;
    int64_t RouterCounters::*value;
  };
  static constexpr Counter kCounters[] = {
      {"baton_sequences_requeued_total", "Sequences that a worker refused or gave back.",
       &RouterCounters::requeued},
      {"baton_requests_shed_total", "Requests refused because they would have waited for too long.",
       &RouterCounters::shed},
      {"baton_requests_evicted_total", "Waiting requests that a full queue gave up for others.",
       &RouterCounters::evicted},
      {"baton_moves_total", "Sequences taken away from a lost, hung or draining worker.",
       &RouterCounters::moves},
      {"baton_retries_total", "Sequences tried again after a healthy worker's failure.",
       &RouterCounters::retries},
      {"baton_handoff_failures_total", "Transfers that a worker reported as failed.",
       &RouterCounters::handoff_failures},
      {"baton_rebinds_total", "Reservations moved to another transfer.", &RouterCounters::rebinds},
      {"baton_resends_total", "Finished KV sent once more without prefill.",
       &RouterCounters::resends},
      {"baton_joined_choices_total", "Choices sent to where their prompt's first one is.",
       &RouterCounters::joins},
      {"baton_self_prefills_total", "Prompts that a decode worker computes itself.",
       &RouterCounters::self_prefills},
      {"baton_returns_total", "Sequences that went on where they were after a session's end.",
       &RouterCounters::returns},
      {"baton_workers_listed_total", "Workers of the static list, and addresses found by name.",
       &RouterCounters::workers_listed},
      {"baton_workers_forgotten_total", "Workers that no name has any more.",
       &RouterCounters::workers_forgotten},
      {"baton_fenced_workers_total", "Workers fenced because they stood still.",
       &RouterCounters::hung_workers},
      {"baton_unanswered_total", "Decode calls and rebinds without an answer in time.",
       &RouterCounters::unanswered},
      {"baton_holds_expired_total", "Held KV given up because no other side was found.",
       &RouterCounters::holds_expired},
      {"baton_stale_tokens_total", "Tokens of a position that was emitted already: dropped.",
       &RouterCounters::stale_tokens},
      {"baton_stale_mail_total", "Late, duplicate or unknown mail: no-ops.",
       &RouterCounters::stale_mail},
  };
  for (const Counter& counter : kCounters) {
    metrics_.Export(counter.name, counter.help, MetricKind::kCounter,
                    [service, value = counter.value] {
                      return std::vector<MetricSample>{
                          {.labels = {}, .value = static_cast<double>(service->counters().*value)}};
                    });
  }
}

void RouterMetrics::ExportValue(const char* name, const char* help, MetricKind kind,
                                std::function<double()> read) {
  metrics_.Export(name, help, kind, [read = std::move(read)] {
    return std::vector<MetricSample>{{.labels = {}, .value = read()}};
  });
}

void RouterMetrics::ExportDiscovery(const Discovery* discovery) {
  const auto role = [](const Discovery::NameStats& name) {
    return std::string(name.role == Role::kPrefill ? "prefill" : "decode");
  };
  metrics_.Export("baton_discovery_lookups_total", "Lookups of names of workers, by result.",
                  MetricKind::kCounter, [discovery, role] {
                    std::vector<MetricSample> samples;
                    for (const auto& name : discovery->Stats()) {
                      for (const auto& [result, count] :
                           {std::pair("ok", name.good), std::pair("failed", name.failed)}) {
                        samples.push_back({.labels = {{"name", name.name},
                                                      {"role", role(name)},
                                                      {"result", result}},
                                           .value = static_cast<double>(count)});
                      }
                    }
                    return samples;
                  });
  metrics_.Export("baton_discovery_addresses",
                  "Addresses in the last good answer, by whether there was room for them.",
                  MetricKind::kGauge, [discovery, role] {
                    std::vector<MetricSample> samples;
                    for (const auto& name : discovery->Stats()) {
                      const int64_t listed = name.addresses - name.left_out;
                      for (const auto& [state, count] : {std::pair("listed", listed),
                                                         std::pair("left_out", name.left_out)}) {
                        samples.push_back({.labels = {{"name", name.name},
                                                      {"role", role(name)},
                                                      {"state", state}},
                                           .value = static_cast<double>(count)});
                      }
                    }
                    return samples;
                  });
}

void RouterMetrics::ExportTokenCache(std::shared_ptr<const Tokenizer> tokenizer) {
  metrics_.Export("baton_token_cache_chunks_total", "Chunks of long texts, by what was found.",
                  MetricKind::kCounter, [tokenizer] {
                    const TokenCacheInfo info = tokenizer->cache_info();
                    return std::vector<MetricSample>{
                        {.labels = {{"result", "hit"}}, .value = static_cast<double>(info.hits)},
                        {.labels = {{"result", "miss"}},
                         .value = static_cast<double>(info.misses)}};
                  });
  metrics_.Export("baton_token_cache_bytes", "Held for tokens of long texts.", MetricKind::kGauge,
                  [tokenizer] {
                    return std::vector<MetricSample>{
                        {.labels = {},
                         .value = static_cast<double>(tokenizer->cache_info().bytes)}};
                  });
}

void RouterMetrics::OnFirstToken(Duration since_start) { ttft_.Observe(ToSeconds(since_start)); }

void RouterMetrics::OnNextToken(Duration since_previous) {
  inter_token_.Observe(ToSeconds(since_previous));
}

void RouterMetrics::OnRequestEnd(const absl::Status& status, Duration since_start,
                                 const Usage& usage) {
  e2e_.Observe(ToSeconds(since_start));
  prompt_tokens_ += usage.prompt_tokens;
  completion_tokens_ += usage.completion_tokens;
  OnRefusal(status);
}

void RouterMetrics::OnRefusal(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  ++outcomes_[OutcomeOf(status)];
}

}  // namespace baton
