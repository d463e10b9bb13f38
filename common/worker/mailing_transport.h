#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/time.h"
#include "common/node/worker_mail.h"
#include "common/telemetry/metrics.h"
#include "common/transport/kv_transport.h"
#include "common/transport/transport_counters.h"

namespace baton {

// Stands between a worker's node and its transport: mails the transport's events to the node and
// measures each transfer, from Start on the sender and from the first frame on the receiver.
// Exports the transport's own counters.
class MailingTransport : public KvTransport {
 public:
  // The inbox outlives this. Adds baton_kv_transfer_* and, for each of TransportCounters,
  // baton_kv_transport_*; all labelled with `name`.
  MailingTransport(const std::string& name, WorkerInbox inbox, Metrics* metrics);

  // The transport whose sink is OnEvent, and how its counters are read from any thread; owned from
  // now on and destroyed with this. Before the first scrape.
  void set_transport(std::unique_ptr<KvTransport> transport,
                     std::function<TransportCounters()> counters) {
    transport_ = std::move(transport);
    counters_ = std::move(counters);
  }

  // The sink, on the transport's thread.
  void OnEvent(TransferEvent event);

  void Expect(ExpectArgs args) override { transport_->Expect(std::move(args)); }
  void Start(StartArgs args) override;
  void Push(PushArgs args) override { transport_->Push(args); }
  void Finish(FinishArgs args) override { transport_->Finish(std::move(args)); }
  void Abort(TicketId ticket) override { transport_->Abort(ticket); }
  std::vector<OpenLeg> OpenLegs() const override { return transport_->OpenLegs(); }

 private:
  using Key = std::pair<TicketId, bool>;  // With `receiver`.

  void ExportCounters(const std::string& name, Metrics* metrics);

  const WorkerInbox inbox_;
  Histogram seconds_;
  absl::Mutex mutex_;
  std::map<Key, Time> started_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> failures_ ABSL_GUARDED_BY(mutex_);  // By status code.
  std::function<TransportCounters()> counters_;
  std::unique_ptr<KvTransport> transport_;  // Last: its thread uses all of the above.
};

}  // namespace baton
