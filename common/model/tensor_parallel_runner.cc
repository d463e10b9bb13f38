#include "common/model/tensor_parallel_runner.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"

namespace baton {

absl::StatusOr<std::unique_ptr<TensorParallelRunner>> TensorParallelRunner::Create(
    std::vector<RunnerParts> ranks, std::unique_ptr<RankGroup> group, RunnerSink* sink,
    LostFn lost) {
  std::unique_ptr<TensorParallelRunner> made(
      new TensorParallelRunner(std::move(group), sink, std::move(lost)));
  made->layers_.resize(ranks.size());
  for (RunnerParts& rank : ranks) {
    made->sinks_.push_back(std::make_unique<RankSink>(made.get(), made->sinks_.size()));
    rank.sink = made->sinks_.back().get();
    rank.lost = [runner = made.get()](const absl::Status& status) { runner->OnLost(status); };
  }
  RETURN_IF_ERROR(made->CreateRanks(std::move(ranks)));
  return made;
}

// At the same time, as they capture graphs together. What failed first is told: who waited for that
// rank knows it by hearsay alone.
absl::Status TensorParallelRunner::CreateRanks(std::vector<RunnerParts> ranks) {
  ranks_.resize(ranks.size());
  std::mutex mutex;
  absl::Status first;
  const auto create = [&](size_t rank) {
    NameThisThread(rank == 0 ? "compute" : "compute-rank");
    Communicator* const group = ranks[rank].group;
    auto created = TransformerRunner::Create(std::move(ranks[rank]));
    if (created.ok()) {
      ranks_[rank] = *std::move(created);
      return;
    }
    {
      const std::lock_guard lock(mutex);
      first.Update(created.status());
    }
    group->Fail(created.status());
  };
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < ranks.size(); ++rank) threads.emplace_back(create, rank);
  }
  return first;
}

TensorParallelRunner::TensorParallelRunner(std::unique_ptr<RankGroup> group, RunnerSink* sink,
                                           LostFn lost)
    : group_(std::move(group)), sink_(sink), lost_(std::move(lost)) {}

// No rank stops alone: the others would wait for it.
TensorParallelRunner::~TensorParallelRunner() {
  Stop();
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return (running_ == 0 && reporting_ == 0) || is_lost_; });
  }
  // After a loss some are amid a step and use the lead's logits: none goes before all have ended.
  for (const auto& rank : ranks_) {
    if (rank != nullptr) rank->End();
  }
}

void TensorParallelRunner::Stop() {
  if (!ranks_.empty() && ranks_[0] != nullptr) ranks_[0]->Stop();
}

void TensorParallelRunner::Start(std::shared_ptr<const StepPlan> plan) {
  {
    const std::lock_guard lock(mutex_);
    if (running_ > 0) {
      // A follow-up; or what starts while the last step is being reported.
      BATON_CHECK(next_.size() < 2);
      next_.push_back(std::move(plan));
      return;
    }
    running_ = ranks_.size();
  }
  Begin(std::move(plan));
}

void TensorParallelRunner::Begin(std::shared_ptr<const StepPlan> plan) {
  StepDone failed{.step = plan->step};
  {
    const std::lock_guard lock(mutex_);
    std::ranges::fill(layers_, 0);
    reported_ = 0;
    if (IsFollowUp(*plan)) {
      failed.status = before_.status;
      if (failed.status.ok()) plan = WithTokens(*plan, before_);
    }
  }
  if (!failed.status.ok()) return Report(std::move(failed));
  group_->OnStart();
  for (const auto& rank : ranks_) rank->Start(plan);
}

void TensorParallelRunner::OnLayerDone(size_t rank, const LayerDone& done) {
  const std::lock_guard lock(mutex_);
  layers_[rank] = done.layer + 1;
  const int32_t written = std::ranges::min(layers_);
  while (reported_ < written) sink_->OnLayerDone({.step = done.step, .layer = reported_++});
}

void TensorParallelRunner::OnRowsDone(const RowsDone& done) {
  const std::lock_guard lock(mutex_);
  sink_->OnRowsDone(done);
}

// The sink may start the next step from within OnStepDone: by then no rank is in this one.
void TensorParallelRunner::OnStepDone(size_t rank, StepDone done) {
  {
    const std::lock_guard lock(mutex_);
    if (rank == 0) done_ = std::move(done);
    if (running_ > 1) {
      --running_;
      return;
    }
    done = std::move(done_);
  }
  Report(std::move(done));
}

void TensorParallelRunner::Report(StepDone done) {
  {
    const std::lock_guard lock(mutex_);
    before_ = OutcomeOf(done);
    ++reporting_;
  }
  // Until it has been told nothing else begins, or that might be reported first.
  sink_->OnStepDone(std::move(done));
  std::shared_ptr<const StepPlan> next;
  {
    const std::lock_guard lock(mutex_);
    running_ = next_.empty() ? 0 : ranks_.size();
    if (!next_.empty()) {
      next = std::move(next_.front());
      next_.pop_front();
    }
  }
  if (next != nullptr) Begin(std::move(next));
  const std::lock_guard lock(mutex_);
  --reporting_;
  idle_.notify_all();
}

void TensorParallelRunner::OnLost(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_lost_, true)) return;
    idle_.notify_all();
  }
  if (lost_) lost_(status);
}

}  // namespace baton
