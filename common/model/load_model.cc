#include "common/model/load_model.h"

#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/checkpoint/model_files.h"
#include "common/model/step_graphs.h"

namespace baton {
namespace {

absl::Status CheckOptions(const ModelOptions& options) {
  if (options.block_size < 1 || options.block_size > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size = ", options.block_size, ": must be in [1, 1024]"));
  }
  const auto at_least = [](int32_t value, int32_t least, const char* name) {
    if (value >= least) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " = ", value, ": must be at least ", least));
  };
  RETURN_IF_ERROR(at_least(options.num_blocks, options.memory_fraction > 0 ? 0 : 1, "num_blocks"));
  RETURN_IF_ERROR(at_least(options.max_model_len, 0, "max_model_len"));
  RETURN_IF_ERROR(at_least(options.max_step_tokens, 1, "max_step_tokens"));
  return at_least(options.max_step_rows, 1, "max_step_rows");
}

// What a worker must share with another for their bits to be equal.
std::string NumericsId(std::string_view arithmetic, DType compute, DType kv) {
  std::string id(arithmetic);
  id.append(" compute=").append(ToString(compute));
  id.append(" kv=").append(ToString(kv)).append(" kv_scale=1 tp=1 ").append(kSamplerVersion);
  return id;
}

// The layers share one block table: a block falls behind the window only if every layer has it.
KvLayout LayoutOf(const ModelConfig& config, int32_t block_size, DType dtype) {
  return {.block_size = block_size,
          .groups = {{.num_layers = config.num_layers,
                      .num_kv_heads = config.num_kv_heads,
                      .k_dim = config.head_dim,
                      .v_dim = config.head_dim,
                      .dtype = dtype,
                      .window = std::ranges::min(config.windows)}}};
}

absl::StatusOr<std::unique_ptr<KvCache>> MakePool(Device& device, const KvLayout& layout,
                                                  int32_t num_blocks, MemoryKind kind) {
  ASSIGN_OR_RETURN(const int64_t bytes, KvCache::PoolBytes(layout, num_blocks));
  absl::StatusOr<Buffer> memory = device.Allocate(bytes, kind);
  if (!memory.ok() && memory.status().code() != absl::StatusCode::kResourceExhausted) {
    return memory.status();
  }
  if (!memory.ok()) {
    const char* const option = kind == MemoryKind::kPinned ? "--swap-blocks" : "--num-blocks";
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot allocate %d bytes for %d KV blocks; lower %s", bytes, num_blocks, option));
  }
  const bool host = device.info().unified || kind == MemoryKind::kPinned;
  return KvCache::Create(layout, num_blocks, *std::move(memory), host);
}

std::string Mebibytes(int64_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB"); }

// What the fraction leaves beside what is taken already, what will be and a reserve for the driver;
// at least one of the longest sequences.
absl::StatusOr<int32_t> BlocksByMemory(const Device& device, const KvLayout& layout,
                                       double fraction, int64_t longest, int64_t set_aside) {
  ASSIGN_OR_RETURN(const DeviceMemory memory, device.Memory());
  const auto share = static_cast<int64_t>(fraction * static_cast<double>(memory.total));
  const int64_t left = share - memory.taken - set_aside - memory.total / 64;
  const int64_t block_bytes = BlockBytes(layout);
  const int64_t sequence = (longest + layout.block_size - 1) / layout.block_size * block_bytes;
  if (left < sequence) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Mebibytes(sequence - left), " of GPU memory are missing: --gpu-memory-fraction ", fraction,
        " of ", Mebibytes(memory.total), " hold ", Mebibytes(memory.taken),
        " of weights and workspace, and K/V of one sequence of ", longest, " tokens takes ",
        Mebibytes(sequence), "; raise the fraction, lower --max-model-len, or take --kv-dtype ",
        "fp8_e4m3 or a larger GPU"));
  }
  if (memory.free < left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Mebibytes(left - memory.free), " of GPU memory are missing: --gpu-memory-fraction ",
        fraction, " leaves ", Mebibytes(left), " for K/V, but only ", Mebibytes(memory.free),
        " are free, as other programs use this GPU; stop them, lower the fraction, or take another "
        "GPU by --device cuda:N"));
  }
  return static_cast<int32_t>(std::min<int64_t>(left / block_bytes, 1 << 28));
}

int32_t DefaultSwapBlocks(const KvLayout& layout, int32_t num_blocks) {
  const int64_t quarter = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)} / 4;
  return static_cast<int32_t>(
      std::clamp<int64_t>(quarter / std::max<int64_t>(BlockBytes(layout), 1), 1, num_blocks));
}

// After all else that takes the device's memory, as what is left may be the pool's.
absl::Status MakePools(const ModelOptions& options, const KvLayout& layout, int64_t longest,
                       int64_t set_aside, Device& device, LoadedModel& model) {
  int32_t num_blocks = options.num_blocks;
  if (num_blocks == 0) {
    ASSIGN_OR_RETURN(num_blocks, BlocksByMemory(device, layout, options.memory_fraction, longest,
                                                set_aside));
  }
  ASSIGN_OR_RETURN(model.cache, MakePool(device, layout, num_blocks, MemoryKind::kDevice));
  const int32_t swap_blocks =
      options.swap_blocks < 0 ? DefaultSwapBlocks(layout, num_blocks) : options.swap_blocks;
  if (swap_blocks == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(model.swap, MakePool(device, layout, swap_blocks, MemoryKind::kPinned));
  return absl::OkStatus();
}

ModelInfo InfoOf(const ModelOptions& options, const ModelFiles& files, const Device& device,
                 const KvLayout& layout, DType kv_dtype) {
  const DType compute = options.compute_dtype;
  const int32_t longest = files.config.max_model_len;
  return {.numerics_id = NumericsId(device.Arithmetic(compute), compute, kv_dtype),
          .layout = layout,
          .model_digest = files.model_digest,
          .vocab_size = files.config.vocab_size,
          .max_model_len =
              options.max_model_len > 0 ? std::min(options.max_model_len, longest) : longest,
          .eos_token_ids = files.eos_token_ids};
}

std::vector<int32_t> GraphSizes(const ModelOptions& options, const Device& device) {
  if (!options.graphs || !device.info().has_graphs) return {};
  return StepGraphs::SizesFor(std::min(options.max_step_rows, options.max_step_tokens));
}

absl::StatusOr<ModelMemory> MemoryOf(const Device& device, int64_t weights, const KvCache& cache) {
  ASSIGN_OR_RETURN(const DeviceMemory memory, device.Memory());
  if (device.info().unified) return ModelMemory{.total = memory.total};
  ASSIGN_OR_RETURN(const int64_t pool, KvCache::PoolBytes(cache.layout(), cache.num_blocks()));
  return ModelMemory{.total = memory.total,
                     .weights = weights,
                     .workspace = memory.taken - weights - pool,
                     .kv_cache = pool};
}

// Of steps and of graphs, which fill them up.
StepCapacity CapacityOf(const ModelOptions& options, std::span<const int32_t> graph_sizes,
                        int64_t longest) {
  const int32_t filled = graph_sizes.empty() ? 0 : graph_sizes.back();
  const int32_t rows = std::min(options.max_step_rows, options.max_step_tokens);
  return {.max_tokens = std::max(options.max_step_tokens, filled),
          .max_rows = std::max(rows, filled),
          .max_row_blocks = (longest + options.block_size - 1) / options.block_size};
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options, Device& device, ModelOps& cpu,
                                      RunnerSink* sink, LostFn lost) {
  RETURN_IF_ERROR(CheckOptions(options));
  const DType kv_dtype = options.kv_dtype.value_or(options.compute_dtype);
  ASSIGN_OR_RETURN(const ModelConfig config,
                   LoadModelConfig(options.model_dir, options.max_model_len));
  RETURN_IF_ERROR(device.CheckModel({.compute = options.compute_dtype,
                                     .kv = kv_dtype,
                                     .num_heads = config.num_heads,
                                     .num_kv_heads = config.num_kv_heads,
                                     .head_dim = config.head_dim,
                                     .vocab_size = config.vocab_size}));
  ASSIGN_OR_RETURN(ModelFiles files,
                   LoadModelFiles(options.model_dir, {.max_model_len = options.max_model_len,
                                                      .num_threads = options.load_threads,
                                                      .nice = options.compute_nice}));
  const KvLayout layout = LayoutOf(files.config, options.block_size, kv_dtype);
  LoadedModel model;
  model.info = InfoOf(options, files, device, layout, kv_dtype);
  const int64_t longest = model.info.max_model_len;
  const std::vector<int32_t> graph_sizes = GraphSizes(options, device);
  const StepCapacity capacity = CapacityOf(options, graph_sizes, longest);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> transformer,
      Transformer::Create(files.config, files.weights, options.compute_dtype, &device,
                          capacity.max_tokens,
                          [&](std::span<const std::byte> bytes) { files.files.Release(bytes); }));
  // The weights have landed: no step waits for the lane that brings them.
  RETURN_IF_ERROR(device.Synchronize());
  ASSIGN_OR_RETURN(StepMetadata metadata, StepMetadata::Create(device, capacity));
  ASSIGN_OR_RETURN(std::unique_ptr<StepResults> results,
                   StepResults::Create(device, cpu, model.info, capacity));
  RETURN_IF_ERROR(MakePools(options, layout, longest,
                            StepGraphs::kBytesOfOne * std::ssize(graph_sizes), device, model));
  const int64_t weights = transformer->weight_bytes();
  ASSIGN_OR_RETURN(
      model.runner,
      TransformerRunner::Create(
          {.device = &device,
           .transformer = std::move(transformer),
           .cache = model.cache.get(),
           .swap = model.swap.get(),
           .info = model.info,
           .metadata = std::move(metadata),
           .results = std::move(results),
           .graph_sizes = graph_sizes,
           .nice = options.compute_nice,
           .limit = options.device_limit,
           .sink = sink,
           .lost = std::move(lost)}));
  model.num_graphs = static_cast<int32_t>(graph_sizes.size());
  ASSIGN_OR_RETURN(model.memory, MemoryOf(device, weights, *model.cache));
  return model;
}

}  // namespace baton
