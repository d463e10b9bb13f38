#include "common/rpc/tls_metrics.h"

#include <vector>

namespace baton {

void ExportTls(const ClusterTls* tls, Metrics* metrics) {
  if (tls == nullptr) return;
  metrics->Export("baton_tls_not_after_seconds", "When the certificate ends, Unix time.",
                  MetricKind::kGauge, [tls] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = static_cast<double>(tls->current()->not_after_s)}};
                  });
  metrics->Export("baton_tls_generations_refused_total",
                  "Generations in --tls-dir that were not taken.", MetricKind::kCounter, [tls] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = static_cast<double>(tls->refused_generations())}};
                  });
}

}  // namespace baton
