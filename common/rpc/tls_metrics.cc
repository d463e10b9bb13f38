#include "common/rpc/tls_metrics.h"

#include <utility>
#include <vector>

#include "common/rpc/failed_handshakes.h"

namespace baton {

void ExportTls(const ClusterTls* tls, Metrics* metrics) {
  if (tls == nullptr) return;
  metrics->Export("baton_tls_not_after_seconds", "When the certificate ends, Unix time.",
                  MetricKind::kGauge, [tls] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = static_cast<double>(tls->current()->not_after_s)}};
                  });
  // Named before editions were; dashboards know the name.
  metrics->Export("baton_tls_generations_refused_total",
                  "Editions of --tls-dir that were not taken.", MetricKind::kCounter, [tls] {
                    return std::vector<MetricSample>{
                        {.labels = {}, .value = static_cast<double>(tls->refused_editions())}};
                  });
  metrics->Export(
      "baton_tls_files_refused",
      "1 while --tls-dir holds an edition that was not taken; an older one is in use.",
      MetricKind::kGauge, [tls] {
        return std::vector<MetricSample>{{.labels = {}, .value = tls->is_behind() ? 1.0 : 0.0}};
      });
  metrics->Export(
      "baton_tls_refused_total",
      "Peers that were refused: handshakes because no CA knows the certificate (ca), for its dates "
      "(expired), who it names (identity), or without one (handshake: plaintext, TLS 1.2, given "
      "up); calls for the method, or because no CA knows the peer any more (ca).",
      MetricKind::kCounter, [tls] {
        const TlsRefusals& refusals = tls->refusals();
        const FailedHandshakes& failed = CountFailedHandshakes();
        std::vector<MetricSample> samples;
        for (const auto& [reason, count] : {std::pair{"identity", refusals.identity.load()},
                                            std::pair{"method", refusals.method.load()},
                                            std::pair{"ca", refusals.ca + failed.ca},
                                            std::pair{"expired", failed.expired.load()},
                                            std::pair{"handshake", failed.handshake.load()}}) {
          samples.push_back(
              {.labels = {{"reason", reason}}, .value = static_cast<double>(count)});
        }
        return samples;
      });
}

}  // namespace baton
