#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process/worker_runtime.h"
#include "prefill_worker/config.h"
#include "prefill_worker/node.h"

namespace baton {

// A prefill worker process: the node and everything around it.
class PrefillService {
 public:
  // Loads, listens and serves. The error names the option and the cure.
  static absl::StatusOr<std::unique_ptr<PrefillService>> Start(const PrefillConfig& config);
  ~PrefillService();

  // Takes nothing new, waits for what runs (at most the configured limit, or until `hurry` says
  // so), then ends everything.
  void Drain(const std::function<bool()>& hurry) { runtime_->Drain(hurry); }

 private:
  explicit PrefillService(std::unique_ptr<WorkerRuntime> runtime) : runtime_(std::move(runtime)) {}

  std::unique_ptr<WorkerRuntime> runtime_;
  std::unique_ptr<PrefillNode> node_;  // Uses parts of the runtime, so it goes first.
};

}  // namespace baton
