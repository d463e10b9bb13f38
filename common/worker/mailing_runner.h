#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/time.h"
#include "common/model/model_runner.h"
#include "common/node/worker_mail.h"
#include "common/telemetry/metrics.h"
#include "common/worker/device_metrics.h"

namespace baton {

// Stands between a worker's node and its runner: mails the runner's reports to the node and
// measures each step. Set the runner before the first Start; it must be gone before this is.
class MailingRunner : public ModelRunner, public RunnerSink {
 public:
  // The inbox outlives this. Adds baton_step_seconds, baton_step_host_seconds, baton_tokens_total
  // and what ExportBusyTime does.
  MailingRunner(WorkerInbox inbox, Metrics* metrics);

  void set_runner(ModelRunner* runner) { runner_ = runner; }

  void Start(std::shared_ptr<const StepPlan> plan) override;
  void OnLayerDone(const LayerDone& done) override;
  void OnRowsDone(const RowsDone& done) override;
  void OnStepDone(StepDone done) override;

 private:
  void Measure(const StepPlan& plan, Duration took);

  const WorkerInbox inbox_;
  ModelRunner* runner_ = nullptr;
  Histogram prefill_seconds_;
  Histogram decode_seconds_;
  Histogram mixed_seconds_;
  Histogram host_seconds_;
  std::atomic<int64_t> computed_tokens_ = 0;
  std::atomic<int64_t> sampled_tokens_ = 0;
  BusyTime busy_;

  absl::Mutex mutex_;
  // In flight, the one that runs first.
  std::deque<std::shared_ptr<const StepPlan>> plans_ ABSL_GUARDED_BY(mutex_);
  Time began_ ABSL_GUARDED_BY(mutex_){};  // That one, to run.
};

}  // namespace baton
