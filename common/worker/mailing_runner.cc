#include "common/worker/mailing_runner.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace baton {
namespace {

Histogram StepSeconds(Metrics* metrics, const char* phase) {
  return metrics->AddHistogram("baton_step_seconds", "Time of one forward pass.",
                               {{"phase", phase}}, DoublingBuckets(0.0005, 14));
}

}  // namespace

MailingRunner::MailingRunner(WorkerInbox inbox, Metrics* metrics)
    : inbox_(inbox),
      prefill_seconds_(StepSeconds(metrics, "prefill")),
      decode_seconds_(StepSeconds(metrics, "decode")),
      mixed_seconds_(StepSeconds(metrics, "mixed")),
      host_seconds_(metrics->AddHistogram(
          "baton_step_host_seconds",
          "Of a pass, the time until a GPU has all layers to do; on a CPU until they are done.", {},
          DoublingBuckets(0.00005, 17))),
      busy_(SteadyNow()) {
  ExportBusyTime(&busy_, SteadyNow, metrics);
  metrics->Export("baton_tokens_total", "Tokens through the model.", MetricKind::kCounter, [this] {
    return std::vector<MetricSample>{
        {.labels = {{"kind", "computed"}}, .value = static_cast<double>(computed_tokens_)},
        {.labels = {{"kind", "sampled"}}, .value = static_cast<double>(sampled_tokens_)}};
  });
}

void MailingRunner::Start(std::shared_ptr<const StepPlan> plan) {
  BATON_CHECK(runner_ != nullptr);
  {
    absl::MutexLock lock(&mutex_);
    plans_.push_back(plan);
    if (plans_.size() == 1) busy_.Begin(began_ = SteadyNow());
  }
  runner_->Start(std::move(plan));
}

void MailingRunner::OnLayerDone(const LayerDone& done) { Post(inbox_, done); }

void MailingRunner::OnRowsDone(const RowsDone& done) { Post(inbox_, done); }

void MailingRunner::OnStepDone(StepDone done) {
  {
    absl::MutexLock lock(&mutex_);
    const std::shared_ptr<const StepPlan> plan = std::move(plans_.front());
    plans_.pop_front();
    const Time now = SteadyNow();
    Measure(*plan, now - began_);
    busy_.End(now);
    if (!plans_.empty()) busy_.Begin(began_ = now);
  }
  if (done.host > Duration::zero()) host_seconds_.Observe(ToSeconds(done.host));
  Post(inbox_, std::move(done));  // Last: the next step may start at once.
}

void MailingRunner::Measure(const StepPlan& plan, Duration took) {
  int64_t tokens = 0;
  bool prefills = false;
  bool decodes = false;
  for (const StepRow& row : plan.rows) {
    tokens += static_cast<int64_t>(row.tokens.size());
    (row.num_emitted > 0 && row.tokens.size() == 1 ? decodes : prefills) = true;
    sampled_tokens_ += row.sample ? 1 : 0;
  }
  computed_tokens_ += tokens;
  Histogram& seconds = !decodes ? prefill_seconds_ : prefills ? mixed_seconds_ : decode_seconds_;
  seconds.Observe(ToSeconds(took));
}

}  // namespace baton
