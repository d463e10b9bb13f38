#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_runner.h"
#include "common/model/sample_lists.h"
#include "common/model/step_metadata.h"
#include "kernels/api/device.h"

namespace baton {

// What a step's logits become. Of each step: Build, then the upload, then for each slice of its
// rows, in order, Enqueue, a wait for kCompute, and Finish; then Take.
//
// The device chooses and scores tokens of its own logits. Rows that it cannot end (it tells fewer
// alternatives, has no digests, or has no room for their lists) are copied and go to the same
// operators of the CPU, where all rows go if the device is the CPU.
class StepResults {
 public:
  // Both outlive it. With `other`, of at least that capacity, it takes no memory of the device:
  // that works for one after the other. RESOURCE_EXHAUSTED when the memory cannot be had.
  static absl::StatusOr<std::unique_ptr<StepResults>> Create(Device& device, ModelOps& cpu,
                                                             const ModelInfo& info,
                                                             const StepCapacity& capacity,
                                                             const StepResults* other = nullptr);

  // The plan stays until Take. The upload before must have landed.
  void Build(const StepPlan& plan);
  // What is to be copied on kCompute before the first Enqueue; may be of no bytes.
  const CopyPiece& upload() const { return upload_; }
  int64_t num_rows() const { return static_cast<int64_t>(wanted_.size()); }

  // Whether a follow-up of the step can be enqueued before the step has ended: the device samples
  // for each of its rows, and all in one slice.
  bool CanBeFollowed() const;
  // Before the pass of a follow-up and behind its upload: the tokens of `before`, of another
  // StepResults, go to tokens[row] of each of its rows, and to where penalties count them.
  absl::Status TakeTokens(const StepResults& before, int32_t* tokens);

  // logits: [count, vocab_size], of the device, of rows [first, first + count), where first is a
  // multiple of the device's logit_rows and count at most as many.
  absl::Status Enqueue(int64_t first, int64_t count, Floats logits);
  absl::Status Finish();

  // In the plan's order.
  std::vector<RowResult> Take();

  // Of lists of one step that a device has room for.
  static constexpr int64_t kListBytes = int64_t{4} << 20;

 private:
  // What is wanted of one row of logits.
  struct LogitRow {
    const StepRow* row = nullptr;
    RowResult* result = nullptr;
    int32_t position = 0;            // Of the token that the logits are about.
    PromptLogprob* score = nullptr;  // Where the prompt token's score goes, if asked for.
    uint64_t digest = 0;
  };

  // Rows for one device, and where its operators find and leave everything.
  struct Rows {
    SampleLists lists;
    std::vector<int32_t> sampled;  // Of wanted_, ascending: whose samples these are.
    std::vector<int32_t> scored;
    SampleArgs sample;  // Of all the step's rows.
    ScoreArgs score;
  };

  // What only the CPU's operators write.
  struct HostResults {
    std::vector<SampleResult> samples;
    std::vector<ScoreResult> scores;
    std::vector<int32_t> sample_tokens, score_tokens;
    std::vector<float> sample_logits, score_logits;
  };

  // The device's memory; none of it where the device is the CPU.
  struct Memory {
    Buffer logits;    // Pinned: the piece of their copy, then a slice of them.
    Buffer lists;     // Pinned, and their copy.
    Buffer uploaded;
    Buffer results;   // Pinned.
    Buffer adjusted;  // f32 [a slice's rows, vocab_size]
    Buffer counts;    // int32 of the same shape.
  };

  StepResults(Device& device, ModelOps& cpu, const ModelInfo& info);
  absl::Status MakeRoom(const StepCapacity& capacity);
  absl::Status MakeScratch(int64_t bytes);
  void AddRow(const StepRow& row, RowResult& result);
  bool IsForDevice(const StepRow& row);
  // The lists behind each other in pinned memory, and where they will be in the device's.
  void PackLists();
  void PlaceHostRows();
  // Calls both operators on the rows of the slice.
  absl::Status Call(ModelOps& ops, const Rows& rows, const float* logits) const;
  absl::Status CopySlice(const float* logits);
  void DigestSlice();
  void ReadRows(const Rows& rows);

  Device& device_;
  ModelOps& cpu_;
  const int64_t vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
  const bool unified_;
  const int64_t slice_rows_;
  Memory memory_;
  HostResults host_results_;

  // Of the step.
  std::vector<RowResult> results_;
  std::vector<LogitRow> wanted_;
  Rows on_device_;
  Rows on_host_;
  std::vector<TakenToken> taken_;  // Of rows that follow: what goes to each row's token.
  int64_t list_bytes_ = 0;
  std::byte* uploaded_ = nullptr;  // Where the device has the lists.
  CopyPiece upload_{};
  const TakenToken* taken_tokens_ = nullptr;  // In the device's memory.
  const TakenToken* taken_history_ = nullptr;
  // Of the slice.
  int32_t first_ = 0, end_ = 0;
  const float* host_logits_ = nullptr;
};

}  // namespace baton
