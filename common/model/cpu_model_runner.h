#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/model_runner.h"
#include "common/model/row_reader.h"
#include "common/model/step_batch.h"
#include "common/model/transformer.h"
#include "kernels/api/kernels.h"

namespace baton {

struct CpuModelRunnerOptions {
  std::string model_dir;  // A Hugging Face folder.
  // Tokens of the longest sequence; 0 = what the model supports. A model with longrope takes its
  // short factors if this is within its original length.
  int32_t max_model_len = 0;
  // f32: activations, products and KV in fp32 (the reference mode). bf16: the activations that
  // enter a product with weights are rounded to bf16. f16 is refused.
  DType compute_dtype = DType::kF32;
  std::optional<DType> kv_dtype;  // Unset: the compute dtype.
  int32_t block_size = 16;        // Tokens per KV block, [1, 1024].
  int32_t num_blocks = 0;         // KV blocks, >= 1.
  int32_t swap_blocks = 0;        // Blocks for swapped-out sequences, >= 0.
  int32_t num_threads = 1;        // Of the computation, with the compute thread.
  int32_t compute_nice = 0;       // Added to the niceness of the threads of computation, [0, 19].
  std::string kernels = "auto";   // As DeviceOptions.
  int32_t max_step_tokens = 512;  // Room made at start. A larger step works and grows it.
};

// What is the fastest on this machine for weights of that dtype: bf16 where they are bf16 and
// `kernels` (as in the options) has a bf16 dot product, else f32.
absl::StatusOr<DType> FastestComputeDType(DType weights, const std::string& kernels);

// Computes steps on a thread of its own with the CPU kernels. Any thread may call Start, one step
// at a time. The sink is called on the compute thread; when OnLayerDone(layer) is called, the K/V
// of the step's tokens in layers up to `layer` are in cache() and stay as they are.
class CpuModelRunner : public ModelRunner {
 public:
  // Loads the model and allocates the KV cache. The status names the file or the option. `sink`
  // outlives the runner.
  static absl::StatusOr<std::unique_ptr<CpuModelRunner>> Create(
      const CpuModelRunnerOptions& options, RunnerSink* sink);

  // Stops; the step in progress ends first, with its StepDone.
  ~CpuModelRunner() override;

  void Start(std::shared_ptr<const StepPlan> plan) override;

  // From now on a step ends with CANCELLED at once, one in progress at the next RowsDone that it
  // reports. Any thread. The destructor does so first.
  void Stop();

  const ModelInfo& info() const { return info_; }
  KvCache& cache() { return *cache_; }

  // The kernel set in use, for logs.
  std::string kernels_name() const { return std::string(kernels_->name()); }

 private:
  CpuModelRunner(std::unique_ptr<Kernels> kernels, std::unique_ptr<Transformer> transformer,
                 std::unique_ptr<KvCache> cache, std::unique_ptr<KvCache> swap, ModelInfo info,
                 RunnerSink* sink);

  void ComputeLoop(const std::stop_token& ending);
  StepDone RunStep(const StepPlan& plan);
  // The plan's moves, out and then in.
  absl::Status SwapBlocks(const StepPlan& plan);
  absl::Status ReadLogits(const StepPlan& plan, StepDone& done);

  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvCache> swap_;  // Null without swap_blocks.
  const ModelInfo info_;
  RunnerSink* const sink_;

  // Of the compute thread.
  RowReader reader_;
  ForwardBatch batch_;

  std::mutex mutex_;  // Guards next_ and busy_.
  std::condition_variable_any wake_;
  std::shared_ptr<const StepPlan> next_;
  bool busy_ = false;  // From Start until just before OnStepDone.
  std::atomic<bool> stopping_{false};
  std::jthread thread_;  // Last: it uses all of the above.
};

}  // namespace baton
