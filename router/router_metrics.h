#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/tls_metrics.h"
#include "common/telemetry/metrics.h"
#include "router/discovery.h"
#include "router/generation/generation_service.h"
#include "router/generation/tokenizer.h"
#include "router/router_service.h"

namespace baton {

// The router's metrics: what clients feel (as the text layer observes it) and what the node counts.
class RouterMetrics : public GenerationObserver {
 public:
  // `service` outlives this.
  explicit RouterMetrics(const RouterService* service);

  // Before the first Render; `tls`, null or not, outlives that.
  void ExportTls(const ClusterTls* tls) { baton::ExportTls(tls, &metrics_); }

  void SetDraining() { draining_ = true; }

  void OnFirstToken(Duration since_start) override;
  void OnNextToken(Duration since_previous) override;
  void OnRequestEnd(const absl::Status& status, Duration since_start, const Usage& usage) override;
  void OnRefusal(const absl::Status& status) override;

  // Before the first Render.
  void ExportDiscovery(const Discovery* discovery);  // Which outlives this.
  void ExportTokenCache(std::shared_ptr<const Tokenizer> tokenizer);

  // One value without labels, read at each scrape. Before the first Render.
  void ExportValue(const char* name, const char* help, MetricKind kind,
                   std::function<double()> read);

  std::string Render() const { return metrics_.Render(); }

 private:
  void ExportNode(const RouterService* service);
  void ExportCounters(const RouterService* service);

  Metrics metrics_;
  Histogram ttft_;
  Histogram inter_token_;
  Histogram e2e_;
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> prompt_tokens_ = 0;
  std::atomic<int64_t> completion_tokens_ = 0;
  absl::Mutex mutex_;
  std::map<std::string, int64_t> outcomes_ ABSL_GUARDED_BY(mutex_);
};

// The `outcome` label of a request that ended so: ok, cancelled, deadline, overloaded, unavailable,
// invalid or error.
const char* OutcomeOf(const absl::Status& status);

}  // namespace baton
