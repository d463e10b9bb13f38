#include "common/worker/mailing_transport.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"

namespace baton {
namespace {

struct ExportedCounter {
  const char* name;
  const char* help;
  int64_t TransportCounters::*value;
  // Of what goes over NCCL, where that is counted apart.
  int64_t TransportCounters::*nccl = nullptr;
};

// Every counter but `refused`, which is exported by reason.
constexpr ExportedCounter kCounters[] = {
    {"frames_sent", "Data frames sent.", &TransportCounters::frames_sent,
     &TransportCounters::nccl_frames_sent},
    {"frames_accepted", "Data frames written to blocks and verified by checksum.",
     &TransportCounters::frames_accepted,
     &TransportCounters::nccl_frames_accepted},
    {"bytes_sent", "Payload sent.", &TransportCounters::bytes_sent,
     &TransportCounters::nccl_bytes_sent},
    {"bytes_accepted", "Payload accepted.", &TransportCounters::bytes_accepted,
     &TransportCounters::nccl_bytes_accepted},
    {"duplicate_frames", "Frames with a sequence number that had come already.",
     &TransportCounters::duplicate_frames},
    {"duplicate_ranges", "Frames with a range that had come already.",
     &TransportCounters::duplicate_ranges},
    {"checksum_failures", "Payloads whose checksum was wrong.",
     &TransportCounters::checksum_failures,
     &TransportCounters::nccl_checksum_failures},
    {"abandoned_frames", "Frames that their sender gave up in the middle.",
     &TransportCounters::abandoned_frames},
    {"malformed", "Connections dropped for a bad header or a gap.", &TransportCounters::malformed},
    {"failed_handshakes", "Connections with the wrong key or receiver, or too slow.",
     &TransportCounters::failed_handshakes},
    {"refused_connections", "Connections over a cap.", &TransportCounters::refused_connections},
    {"accepted_connections", "Connections taken.", &TransportCounters::accepted_connections},
    {"opened_connections", "Connections made.", &TransportCounters::opened_connections},
    {"closed_connections", "Connections ended, of both kinds.",
     &TransportCounters::closed_connections},
    {"authenticated_connections", "Connections with a proven peer, of both kinds.",
     &TransportCounters::authenticated_connections},
    {"ignored_calls", "Calls for a ticket that is unknown, ended or known already.",
     &TransportCounters::ignored_calls},
};
static_assert(sizeof(TransportCounters) ==
                  (std::size(kCounters) + 5 + kNumAbortCodes) * sizeof(int64_t),
              "a counter was added that is not exported");

// "ticket of another sender" as a label: ticket_of_another_sender.
std::string LabelOf(AbortCode code) {
  return absl::StrReplaceAll(std::string(ToString(code)), {{" ", "_"}, {",", ""}});
}

}  // namespace

MailingTransport::MailingTransport(const std::string& name, WorkerInbox inbox,
                                   Metrics* metrics)
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
  ExportCounters(name, metrics);
}

void MailingTransport::ExportCounters(const std::string& name, Metrics* metrics) {
  for (const ExportedCounter& counter : kCounters) {
    metrics->Export(absl::StrCat("baton_kv_transport_", counter.name, "_total"), counter.help,
                    MetricKind::kCounter,
                    [this, name, value = counter.value, nccl = counter.nccl] {
                      const TransportCounters counters = counters_();
                      std::vector<MetricSample> samples{
                          {.labels = {{"transport", name}},
                           .value = static_cast<double>(counters.*value)}};
                      if (nccl != nullptr) {
                        samples.push_back({.labels = {{"transport", "nccl"}},
                                           .value = static_cast<double>(counters.*nccl)});
                      }
                      return samples;
                    });
  }
  metrics->Export("baton_kv_transport_refused_total", "Frames refused, by reason.",
                  MetricKind::kCounter, [this, name] {
                    const TransportCounters counters = counters_();
                    std::vector<MetricSample> samples;
                    for (uint32_t code = 0; code < kNumAbortCodes; ++code) {
                      samples.push_back({.labels = {{"transport", name},
                                                    {"reason", LabelOf(AbortCode{code})}},
                                         .value = static_cast<double>(counters.refused[code])});
                    }
                    return samples;
                  });
}

void MailingTransport::Start(StartArgs args) {
  {
    absl::MutexLock lock(&mutex_);
    started_[{args.ticket, false}] = SteadyNow();
  }
  transport_->Start(std::move(args));
}

void MailingTransport::OnEvent(TransferEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    const Key key{event.ticket, event.receiver};
    if (event.kind == TransferEvent::Kind::kBegun) {
      started_[key] = SteadyNow();
    } else {
      bytes_ += event.bytes;
      const auto it = started_.find(key);
      if (event.status.ok() && it != started_.end()) {
        seconds_.Observe(ToSeconds(SteadyNow() - it->second));
      }
      if (it != started_.end()) started_.erase(it);
      if (!event.status.ok()) ++failures_[absl::StatusCodeToString(event.status.code())];
    }
  }
  Post(inbox_, std::move(event));
}

}  // namespace baton
