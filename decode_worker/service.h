#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process/worker_runtime.h"
#include "decode_worker/config.h"
#include "decode_worker/node.h"

namespace baton {

// A decode worker process: the node and everything around it.
class DecodeService {
 public:
  // Loads, listens and serves. The error names the option and the cure.
  static absl::StatusOr<std::unique_ptr<DecodeService>> Start(const DecodeConfig& config);
  ~DecodeService();

  // Takes nothing new, waits for what runs (at most the configured limit, or until `hurry` says
  // so), then ends everything.
  void Drain(const std::function<bool()>& hurry) { runtime_->Drain(hurry); }

 private:
  explicit DecodeService(std::unique_ptr<WorkerRuntime> runtime) : runtime_(std::move(runtime)) {}

  std::unique_ptr<WorkerRuntime> runtime_;
  std::unique_ptr<DecodeNode> node_;  // Uses parts of the runtime, so it goes first.
};

}  // namespace baton
