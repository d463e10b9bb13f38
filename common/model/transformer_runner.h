#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/device_memory.h"
#include "common/model/model_runner.h"
#include "common/model/step_graphs.h"
#include "common/model/step_metadata.h"
#include "common/model/step_results.h"
#include "common/model/transformer.h"
#include "kernels/api/device.h"

namespace baton {

// Told of a device that is lost, and why.
using LostFn = std::function<void(const absl::Status&)>;

// What a runner is made of; all that is pointed to outlives it.
struct RunnerParts {
  Device* device = nullptr;
  std::unique_ptr<Transformer> transformer;
  KvCache* cache = nullptr;
  KvCache* swap = nullptr;  // In pinned memory; null without swapping.
  ModelInfo info;
  StepMetadata metadata;
  std::unique_ptr<StepResults> results;  // Rank 0's.
  // Another's, so that a follow-up is enqueued while the step before it runs. Null: as it has
  // ended.
  std::unique_ptr<StepResults> follow_up_results;
  Communicator* group = nullptr;         // Of several ranks only.
  std::vector<StepGraphs::Shape> graph_shapes;  // Empty: none.
  int32_t nice = 0;  // Added to that of the compute thread.
  RunnerSink* sink = nullptr;
  // Called once, on the compute thread, when the device is lost. If it returns at all the runner
  // computes nothing more and reports nothing more, no StepDone either. Of several ranks also when
  // one but rank 0 has an error that not all have, or does not come: nobody knows what it holds.
  LostFn lost;
};

// Computes steps on a device, driven by a thread of its own. Any thread may call Start. The sink is
// called on the compute thread.
//
// Kernels and copies of a step run later than the calls that enqueue them, and what is reported has
// ended: when OnLayerDone(layer) is called, the K/V of the step's tokens in layers up to `layer`
// are in the cache and stay as they are; OnStepDone comes when nothing of the step touches its
// blocks any more, whatever the status.
//
// A follow-up is enqueued behind a step that the device has still to end, if the device knows the
// tokens of that step before the host does; else when it has ended.
//
// One of several ranks computes its part of each step, and agrees with the others on whether it
// goes on; rank 0 says so, reads the logits and reports the rows. It gets no follow-up.
class TransformerRunner : public StoppableRunner {
 public:
  // Captures the graphs before it returns: several ranks at the same time, each on a thread.
  static absl::StatusOr<std::unique_ptr<TransformerRunner>> Create(RunnerParts parts);

  // Stops; the steps that were started end first, with their StepDone.
  ~TransformerRunner() override;

  void Start(std::shared_ptr<const StepPlan> plan) override;

  void Stop() override;

  // Its thread has ended when this returns, its steps in full or at once if the device is lost.
  void End();

 private:
  // What is reported when a mark is done.
  struct Report {
    Mark mark;
    int32_t layer = 0;
  };

  // A step, from its first call of the device to its report.
  struct Pass {
    std::shared_ptr<const StepPlan> plan;
    StepResults* results = nullptr;  // Null: it is rank 0 that has them.
    std::deque<Report> reports;
    Duration host{};
    // Of one that was enqueued ahead, its logits included.
    bool is_ahead = false;
    absl::Status enqueued;
    Mark end;  // All of it is enqueued before this; 0: not yet.
  };

  TransformerRunner(RunnerParts parts, Buffer pieces);

  void ComputeLoop(const std::stop_token& ending);
  // False when it is to end.
  bool NextPass(const std::stop_token& ending);
  // Nothing when the device is lost.
  std::optional<StepDone> RunStep();
  absl::Status Enqueue(Pass& pass);
  // Whether to: CANCELLED if rank 0 was stopped. All ranks come here alike.
  absl::Status GoOn();
  // Why the step's end is the runner's: what it has enqueued does not end, or the step has not
  // ended alike on all ranks.
  absl::Status EndStep(const absl::Status& enqueued);
  // The pass of a plan that metadata_ holds; by a graph of so many rows if not 0.
  absl::Status EnqueuePass(Pass& pass, int32_t graph_size);
  // Layers [first, end) are reported when all that is enqueued by now has ended.
  absl::Status ReportLayers(Pass& pass, int32_t first, int32_t end);
  // The follow-up of the running step, if it has come and can be.
  absl::Status EnqueueAhead();
  absl::Status EnqueueAll(Pass& pass, const StepResults& before);
  // The plan's moves, out and then in, and its copies.
  absl::Status MoveBlocks(const StepPlan& plan);
  absl::Status CopyBlocks(const KvCache& from, const KvCache& to, std::span<const BlockMove> moves);
  absl::Status AddPiece(const CopyPiece& piece);
  absl::Status FlushPieces();
  absl::Status ReadLogits();
  absl::Status ReadSlice(int64_t first, int64_t count, Floats logits);
  absl::Status ReadAhead();
  absl::Status FinishSlice(int64_t first, int64_t count);
  // Sends the reports whose marks are done.
  absl::Status SendReports();
  // As Wait; enqueues the running step's follow-up meanwhile, if it can be followed.
  absl::Status Await(Mark mark);
  // Waits until all that a lane has got is done, and sends the reports as their marks are.
  absl::Status AwaitLane(Lane lane);
  absl::Status AwaitReports();

  RunnerParts parts_;
  Device& device_;
  const bool leads_;  // Rank 0's, or the only one.
  const StepBounds bounds_;

  // Of the compute thread.
  StepMetadata metadata_;
  StepGraphs graphs_;
  Buffer pieces_;  // Of copies, pinned.
  const int64_t num_pieces_;
  int64_t pieces_begin_ = 0;  // Those before are with the device.
  int64_t pieces_end_ = 0;
  Pass running_;
  bool can_be_followed_ = false;  // The running one, ahead of its end.
  std::optional<Pass> ahead_;     // Its follow-up.
  StepOutcome before_;            // Of the last step that has ended.

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable_any wake_;
  std::deque<std::shared_ptr<const StepPlan>> started_;  // Of which nothing is enqueued yet.
  int num_started_ = 0;  // Steps from their Start until just before their OnStepDone.
  std::atomic<bool> stopping_{false};
  std::jthread thread_;  // Last: it uses all of the above.
};

}  // namespace baton
