#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/model/load_model.h"
#include "kernels/make_device.h"

namespace baton {

// A model, and the CPU that computes it.
struct RunnerOptions {
  std::string model_dir;
  int32_t max_model_len = 0;
  DType compute_dtype = DType::kF32;
  std::optional<DType> kv_dtype;
  int32_t block_size = 16;
  int32_t num_blocks = 0;
  int32_t swap_blocks = 0;
  int32_t num_threads = 1;
  int32_t compute_nice = 0;
  std::string kernels = "auto";
  std::string device = "cpu";
  int32_t tp = 1;  // Each with num_threads.
  int32_t max_step_tokens = 2048;
  int32_t max_step_rows = 64;
  bool graphs = true;
  bool follow_ups = false;
  // Instead of the CPU.
  std::function<std::unique_ptr<Device>()> make_device;
  std::function<std::unique_ptr<ModelOps>()> make_host;  // Beside it.

  DeviceOptions device_options() const {
    return {.kernels = kernels,
            .device = device,
            .num_threads = num_threads * tp,
            .nice = compute_nice};
  }
  ModelOptions model() const {
    return {.model_dir = model_dir,
            .max_model_len = max_model_len,
            .compute_dtype = compute_dtype,
            .kv_dtype = kv_dtype,
            .block_size = block_size,
            .num_blocks = num_blocks,
            .swap_blocks = swap_blocks,
            .load_threads = num_threads,
            .compute_nice = compute_nice,
            .max_step_tokens = max_step_tokens,
            .max_step_rows = max_step_rows,
            .graphs = graphs,
            .follow_ups = follow_ups};
  }
};

// A loaded model with its device, for tests and benchmarks.
class LoadedRunner {
 public:
  static absl::StatusOr<std::unique_ptr<LoadedRunner>> Create(const RunnerOptions& options,
                                                              RunnerSink* sink,
                                                              LostFn lost = nullptr) {
    ASSIGN_OR_RETURN(std::vector<Processors> processors,
                     MakeRanks(options.device_options(), options.tp));
    std::vector<Device*> devices;
    for (Processors& rank : processors) {
      if (options.make_device) rank.device = options.make_device();
      if (options.make_host) rank.host = options.make_host();
      devices.push_back(rank.device.get());
    }
    ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options.model(), devices, *processors[0].host,
                                                  sink, std::move(lost)));
    return std::unique_ptr<LoadedRunner>(
        new LoadedRunner(std::move(processors), std::move(model)));
  }

  void Start(std::shared_ptr<const StepPlan> plan) { model_.runner->Start(std::move(plan)); }
  void Stop() { model_.runner->Stop(); }
  const ModelInfo& info() const { return model_.info; }
  const ModelMemory& memory() const { return model_.ranks[0].memory; }
  KvCache& cache(size_t rank = 0) { return *model_.ranks[rank].cache; }
  size_t num_ranks() const { return model_.ranks.size(); }
  KvCache* swap() { return model_.ranks[0].swap.get(); }
  const std::vector<LoadedRank>& ranks() const { return model_.ranks; }
  Device& device() { return *processors_[0].device; }
  std::string kernels_name() const { return processors_[0].device->info().name; }
  ModelRunner& runner() { return *model_.runner; }

 private:
  LoadedRunner(std::vector<Processors> processors, LoadedModel model)
      : processors_(std::move(processors)), model_(std::move(model)) {}

  std::vector<Processors> processors_;
  LoadedModel model_;
};

}  // namespace baton
