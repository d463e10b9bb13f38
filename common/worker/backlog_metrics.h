#pragma once

#include <functional>

#include "common/node/message.h"
#include "common/telemetry/metrics.h"

namespace baton {

// What waits to be computed, in tokens and in time: by it workers are added (the chart's
// autoscaling). `status` is called for each scrape.
void ExportBacklog(std::function<WorkerStatus()> status, Metrics* metrics);

}  // namespace baton
