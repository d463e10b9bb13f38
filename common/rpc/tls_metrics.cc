#include "common/rpc/tls_metrics.h"

#include <utility>
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
  metrics->Export(
      "baton_tls_refused_total",
      "Peers with a good certificate that were refused: handshakes for who they are (identity), "
      "calls for the method, or because no CA knows them any more (ca).",
      MetricKind::kCounter, [tls] {
        const TlsRefusals& refusals = tls->refusals();
        std::vector<MetricSample> samples;
        for (const auto& [reason, count] : {std::pair{"identity", &refusals.identity},
                                            std::pair{"method", &refusals.method},
                                            std::pair{"ca", &refusals.ca}}) {
          samples.push_back({.labels = {{"reason", reason}},
                             .value = static_cast<double>(count->load())});
        }
        return samples;
      });
}

}  // namespace baton
