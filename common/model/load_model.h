#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/collective/rank_group.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/model_runner.h"
#include "common/model/rank_shape.h"
#include "common/model/transformer_runner.h"
#include "kernels/api/device.h"

namespace baton {

struct ModelOptions {
  std::string model_dir;  // A Hugging Face folder.
  int32_t max_model_len = 0;  // Tokens of the longest sequence; 0 = what the model supports.
  // f32: activations, products and KV in fp32 (the reference mode). bf16: the activations that
  // enter a product with weights are rounded to bf16.
  DType compute_dtype = DType::kF32;
  std::optional<DType> kv_dtype;  // Unset: the compute dtype.
  int32_t block_size = 16;        // Tokens per KV block, [1, 1024].
  int32_t num_blocks = 0;         // KV blocks, of each group of layers (KvLayout); 0 = as many as
                                  // memory_fraction leaves room for.
  double memory_fraction = 0;     // With num_blocks = 0: of the device's memory, all that is taken.
  int32_t swap_blocks = 0;  // Likewise, for swapped-out sequences; -1 = as many as num_blocks,
                            // within a quarter of the host's memory.
  int32_t load_threads = 1;       // That read the files, and fill what goes to a GPU; >= 1.
  int32_t compute_nice = 0;       // Added to the niceness of the compute thread, [0, 19].
  int32_t max_step_tokens = 512;  // Of the largest step, as max_step_rows: room is made for them.
  int32_t max_step_rows = 64;
  bool graphs = true;  // Decode steps are graphs, where the device has them.
  bool follow_ups = false;  // Of steps: room for two at a time, where a device can use it.
};

// Bytes of a device's own memory, of which a load takes all that will be taken.
struct ModelMemory {
  int64_t total = 0;  // The device's.
  int64_t weights = 0;
  int64_t workspace = 0;  // Of kernels and steps.
  int64_t kv_cache = 0;
};

// One rank's part of a model. A block id names the same block in the pools of all ranks.
struct LoadedRank {
  RankShape shape;
  int64_t weight_bytes = 0;
  ModelMemory memory;  // Nothing but the total where host and device memory are one.
  std::unique_ptr<KvCache> cache;  // Of shape.kv_heads.
  std::unique_ptr<KvCache> swap;   // Null without swap_blocks.
};

// A model on a group of devices, ready to compute. Goes before the devices. Members in the order of
// construction.
struct LoadedModel {
  ModelInfo info;                 // Of the whole model, its layout too.
  std::vector<LoadedRank> ranks;  // One of each device.
  int32_t num_graphs = 0;
  std::string slower;                // Device::SlowerFor, of the first.
  const RankGroup* group = nullptr;  // Of several ranks; the runner's.
  std::unique_ptr<StoppableRunner> runner;
};

// A rank on each device, which are of one kind. The status names the file or the option;
// UNAVAILABLE: a device is lost, or hangs. What is passed outlives what is loaded; `cpu` as in
// StepResults, `lost` as in RunnerParts.
absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      std::span<Device* const> devices, ModelOps& cpu,
                                      RunnerSink* sink, LostFn lost = nullptr);

}  // namespace baton
