#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "common/collective/rank_group.h"
#include "common/model/model_runner.h"
#include "common/model/transformer_runner.h"

namespace baton {

// What several ranks of one process compute together, as one runner: each gets every plan. A layer
// is reported when all ranks have written it, a step when none of them touches its blocks any more.
// What fails on all ranks alike, or where rank 0 reads the logits, fails its step. A follow-up
// starts when the step before it has ended on all of them. A rank that fails alone amid it, or does
// not come, ends them all as a lost device ends a runner.
class TensorParallelRunner : public StoppableRunner {
 public:
  // Of a rank each, rank 0's first; their sinks and LostFns are set here.
  static absl::StatusOr<std::unique_ptr<TensorParallelRunner>> Create(
      std::vector<RunnerParts> ranks, std::unique_ptr<RankGroup> group, RunnerSink* sink,
      LostFn lost);

  // Stops; the steps that were started end first, with their StepDone, unless a rank is lost.
  ~TensorParallelRunner() override;

  void Start(std::shared_ptr<const StepPlan> plan) override;
  void Stop() override;

 private:
  // Where one rank reports; on its compute thread.
  class RankSink : public RunnerSink {
   public:
    RankSink(TensorParallelRunner* runner, size_t rank) : runner_(runner), rank_(rank) {}
    void OnLayerDone(const LayerDone& done) override { runner_->OnLayerDone(rank_, done); }
    void OnRowsDone(const RowsDone& done) override { runner_->OnRowsDone(done); }
    void OnStepDone(StepDone done) override { runner_->OnStepDone(rank_, std::move(done)); }

   private:
    TensorParallelRunner* const runner_;
    const size_t rank_;
  };

  TensorParallelRunner(std::unique_ptr<RankGroup> group, RunnerSink* sink, LostFn lost);
  absl::Status CreateRanks(std::vector<RunnerParts> ranks);
  void OnLayerDone(size_t rank, const LayerDone& done);
  void OnRowsDone(const RowsDone& done);
  void OnStepDone(size_t rank, StepDone done);
  // To all ranks, none of which is in a step; a follow-up of a step that failed is reported at
  // once.
  void Begin(std::shared_ptr<const StepPlan> plan);
  // Then its follow-up begins, if it has come.
  void Report(StepDone done);
  void OnLost(const absl::Status& status);

  const std::unique_ptr<RankGroup> group_;
  RunnerSink* const sink_;
  const LostFn lost_;
  std::vector<std::unique_ptr<RankSink>> sinks_;

  std::mutex mutex_;  // Guards what follows, and keeps reports in their order.
  std::condition_variable idle_;
  std::vector<int32_t> layers_;  // That each rank has written in this step.
  int32_t reported_ = 0;         // Of those that all have.
  size_t running_ = 0;           // Ranks that have not ended the step.
  int reporting_ = 0;            // Calls of OnStepDone.
  StepDone done_;                // Rank 0's.
  StepOutcome before_;           // Of the last step that has ended.
  std::deque<std::shared_ptr<const StepPlan>> next_;  // Started while another runs.
  bool is_lost_ = false;

  std::vector<std::unique_ptr<TransformerRunner>> ranks_;  // Last: they use all of the above.
};

}  // namespace baton
