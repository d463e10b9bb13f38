#include "common/process/metered_transport.h"

#include <utility>
#include <vector>

#include "common/node/node_thread.h"

namespace baton {

MeteredTransport::MeteredTransport(const std::string& name, Inbox* inbox, Metrics* metrics)
    : inbox_(inbox),
      seconds_(metrics->AddHistogram("baton_kv_transfer_seconds", "Time of one verified handoff.",
                                     {{"transport", name}}, DoublingBuckets(0.0005, 16))) {
  metrics->Export("baton_kv_transfer_bytes_total", "Payload of handoffs.", MetricKind::kCounter,
                  [this, name] {
                    absl::MutexLock lock(&mutex_);
                    return std::vector<MetricSample>{
                        {.labels = {{"transport", name}}, .value = static_cast<double>(bytes_)}};
                  });
  metrics->Export("baton_kv_transfer_failures_total", "Handoffs that ended without verified KV.",
                  MetricKind::kCounter, [this, name] {
                    absl::MutexLock lock(&mutex_);
                    std::vector<MetricSample> samples;
                    for (const auto& [reason, count] : failures_) {
                      samples.push_back({.labels = {{"transport", name}, {"reason", reason}},
                                         .value = static_cast<double>(count)});
                    }
                    return samples;
                  });
}

void MeteredTransport::Start(StartArgs args) {
  {
    absl::MutexLock lock(&mutex_);
    started_[{args.ticket, false}] = NodeThread::Now();
  }
  transport_->Start(std::move(args));
}

void MeteredTransport::OnEvent(TransferEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    const Key key{event.ticket, event.receiver};
    if (event.kind == TransferEvent::Kind::kBegun) {
      started_[key] = NodeThread::Now();
    } else {
      bytes_ += event.bytes;
      const auto it = started_.find(key);
      if (event.status.ok() && it != started_.end()) {
        seconds_.Observe(ToSeconds(NodeThread::Now() - it->second));
      }
      if (it != started_.end()) started_.erase(it);
      if (!event.status.ok()) ++failures_[absl::StatusCodeToString(event.status.code())];
    }
  }
  inbox_->Post(std::move(event));
}

}  // namespace baton
