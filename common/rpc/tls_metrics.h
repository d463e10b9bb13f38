#pragma once

#include "common/rpc/cluster_tls.h"
#include "common/telemetry/metrics.h"

namespace baton {

// Exports when the certificate ends, how many editions of --tls-dir were not taken, and how many
// peers were refused. Nothing
// where there is no TLS. `tls` outlives `metrics`.
void ExportTls(const ClusterTls* tls, Metrics* metrics);

}  // namespace baton
