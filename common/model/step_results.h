#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_runner.h"
#include "common/model/row_reader.h"
#include "kernels/api/device.h"
#include "kernels/api/kernels.h"

namespace baton {

// What a step's logits become. Of each step: Build, then for each slice of its rows, in order,
// Enqueue, a wait for kCompute, and Finish; then Take.
class StepResults {
 public:
  // Both outlive it. RESOURCE_EXHAUSTED when the memory cannot be had.
  static absl::StatusOr<StepResults> Create(Device& device, Kernels& host, const ModelInfo& info);

  // The plan stays until Take.
  void Build(const StepPlan& plan);
  int64_t num_rows() const { return static_cast<int64_t>(wanted_.size()); }

  // logits: [count, vocab_size], of the device, of rows [first, first + count).
  absl::Status Enqueue(int64_t first, int64_t count, Floats logits);
  void Finish();

  // In the plan's order.
  std::vector<RowResult> Take() { return std::move(results_); }

 private:
  StepResults(Device& device, Kernels& host, const ModelInfo& info, Buffer copied);

  Device* device_;
  int64_t vocab_size_;
  RowReader reader_;
  Buffer copied_;  // The piece of their copy, then logits of a slice. Pinned; empty where memory is one.
  std::vector<RowResult> results_;
  std::vector<LogitRow> wanted_;
  std::span<const LogitRow> slice_;
  const float* logits_ = nullptr;
};

}  // namespace baton
