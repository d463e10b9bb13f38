#include "common/model/load_model.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/machine_share.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/model_files.h"
#include "common/kv_cache/layer_groups.h"
#include "common/model/step_graphs.h"
#include "common/model/tensor_parallel_runner.h"

namespace baton {
namespace {

// How often a rank looks for the others before it sleeps.
constexpr int kSpins = 300;

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
  id.append(" kv=").append(ToString(kv)).append(" kv_scale=1 fold=tree8 ").append(kSamplerVersion);
  return id;
}

// Of so many of the model's KV heads.
KvLayout LayoutOf(const ModelConfig& config, int32_t num_kv_heads, int32_t block_size,
                  DType dtype) {
  return GroupLayers(config.windows,
                     {.num_kv_heads = num_kv_heads,
                      .k_dim = config.head_dim,
                      .v_dim = config.head_dim,
                      .dtype = dtype},
                     block_size);
}

// `num_blocks` of each group of layers.
absl::StatusOr<std::unique_ptr<KvCache>> MakePool(Device& device, const KvLayout& layout,
                                                  int32_t num_blocks, MemoryKind kind) {
  const char* const option = kind == MemoryKind::kPinned ? "--swap-blocks" : "--num-blocks";
  const int64_t of_all = int64_t{num_blocks} * NumGroups(layout);
  if (of_all > INT32_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrCat(num_blocks, " KV blocks for each of ", NumGroups(layout),
                     " groups of layers are more than ", INT32_MAX, "; lower ", option));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, KvCache::PoolBytes(layout, static_cast<int32_t>(of_all)));
  absl::StatusOr<Buffer> memory = device.Allocate(bytes, kind);
  if (!memory.ok() && memory.status().code() != absl::StatusCode::kResourceExhausted) {
    return memory.status();
  }
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(memory.status().message(), ", for ",
                                                     num_blocks, " KV blocks; lower ", option));
  }
  const bool host = device.info().unified || kind == MemoryKind::kPinned;
  return KvCache::Create(layout, static_cast<int32_t>(of_all), *std::move(memory), host);
}

std::string Mebibytes(int64_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB"); }

// What the fraction leaves beside what is taken already, what is set aside for graphs and a reserve
// for the driver; at least one of the longest sequences.
absl::StatusOr<int32_t> BlocksByMemory(const Device& device, const KvLayout& layout,
                                       double fraction, int64_t longest, int64_t set_aside) {
  ASSIGN_OR_RETURN(const DeviceMemory memory, device.Memory());
  const auto share = static_cast<int64_t>(fraction * static_cast<double>(memory.total));
  const int64_t reserve = memory.total / 64 + set_aside;
  const int64_t left = share - memory.taken - reserve;
  const int64_t block_bytes = EntryBytes(layout);
  const int64_t sequence = (longest + layout.block_size - 1) / layout.block_size * block_bytes;
  if (left < sequence) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Mebibytes(sequence - left), " of GPU memory are missing: --gpu-memory-fraction ", fraction,
        " of ", Mebibytes(memory.total), " hold ", Mebibytes(memory.taken),
        " of weights and workspace and ", Mebibytes(reserve),
        " for graphs and the driver, and K/V of one sequence of ", longest, " tokens takes ",
        Mebibytes(sequence), "; raise the fraction, lower --max-model-len, --chunk-tokens or "
        "--max-batch-sequences, or take --kv-dtype fp8_e4m3, --gpu-graphs off or a larger GPU"));
  }
  if (memory.free < left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Mebibytes(left - memory.free), " of GPU memory are missing: --gpu-memory-fraction ",
        fraction, " leaves ", Mebibytes(left), " for K/V, but only ", Mebibytes(memory.free),
        " are free, as other programs use this GPU; stop them, lower the fraction, or take another "
        "GPU by --device cuda:N"));
  }
  const int64_t most = std::min(1 << 28, INT32_MAX / NumGroups(layout));
  return static_cast<int32_t>(std::min(left / block_bytes, most));
}

// Within a quarter of the memory that this process may use, of which each block takes so many bytes
// of all ranks.
int32_t DefaultSwapBlocks(int64_t block_bytes, int32_t num_blocks) {
  const int64_t quarter = ReadMachineShare().memory_bytes() / 4;
  return static_cast<int32_t>(
      std::clamp<int64_t>(quarter / std::max<int64_t>(block_bytes, 1), 1, num_blocks));
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
          .original_len = OriginalLen(files.config),
          .eos_token_ids = files.eos_token_ids};
}

// `needs` are the model's, of which each device has the heads of a rank.
std::vector<StepGraphs::Shape> GraphShapes(const ModelOptions& options,
                                           std::span<Device* const> devices,
                                           ModelNeeds needs, int32_t longest) {
  const Device& device = *devices[0];
  needs.num_heads /= static_cast<int32_t>(devices.size());
  std::vector<StepGraphs::Shape> shapes;
  if (!options.graphs || !device.info().has_graphs) return shapes;
  const int32_t max_rows = std::min(options.max_step_rows, options.max_step_tokens);
  for (const int32_t rows : StepGraphs::SizesFor(max_rows)) {
    shapes.push_back({.rows = rows,
                      .longest = std::min(longest, device.LongestReplay(rows, needs))});
  }
  return shapes;
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
StepCapacity CapacityOf(const ModelOptions& options, std::span<const StepGraphs::Shape> graphs,
                        int64_t longest, const KvLayout& layout) {
  const int32_t filled = graphs.empty() ? 0 : graphs.back().rows;
  const int32_t rows = std::min(options.max_step_rows, options.max_step_tokens);
  const int64_t row_blocks = (longest + options.block_size - 1) / options.block_size;
  StepCapacity capacity{.max_tokens = std::max(options.max_step_tokens, filled),
                        .max_rows = std::max(rows, filled),
                        .max_row_blocks = row_blocks,
                        .num_groups = NumGroups(layout),
                        .max_row_entries = row_blocks};
  for (size_t g = 1; g < layout.groups.size(); ++g) {
    const int32_t window = layout.groups[g].window;
    // Of what is seen and computed both ends may lie within a block.
    const int64_t seen = (window + capacity.max_tokens) / options.block_size + 2;
    capacity.max_row_entries += window == 0 ? row_blocks : std::min(row_blocks, seen);
  }
  return capacity;
}

// A load in progress. A rank on each device.
struct Load {
  const ModelOptions& options;
  std::span<Device* const> devices;
  ModelOps& cpu;
  const ModelFiles& files;
  const DType kv_dtype;

  LoadedModel model = {};
  std::vector<StepGraphs::Shape> graph_shapes = {};
  StepCapacity capacity = {};
  std::unique_ptr<RankGroup> group = nullptr;  // Of several ranks only.
  std::shared_ptr<const PackedRanks> weights = nullptr;
  std::vector<RunnerParts> parts = {};

  absl::Status PackWeights();
  absl::Status MakeGroup();
  absl::Status MakeRank(size_t r);
  absl::Status MakePools();
  absl::StatusOr<int32_t> NumBlocks() const;
  absl::Status MakeRunner(RunnerSink* sink, LostFn lost);

  KvLayout LayoutOfRank(const RankShape& shape) const {
    return LayoutOf(files.config, shape.kv_heads.count, options.block_size, kv_dtype);
  }
};

absl::Status Load::PackWeights() {
  // A CPU has threads of its own.
  ThreadPool threads(devices[0]->info().unified ? 1 : options.load_threads, options.compute_nice,
                     "load");
  ASSIGN_OR_RETURN(
      PackedRanks packed,
      PackModel(files.config, files.weights, options.compute_dtype, devices,
                {.release = [&](std::span<const std::byte> bytes) { files.files.Release(bytes); },
                 .threads = &threads}));
  weights = std::make_shared<const PackedRanks>(std::move(packed));
  // The weights have landed: no step waits for the lane that brings them.
  for (Device* const device : devices) RETURN_IF_ERROR(device->Synchronize());
  return absl::OkStatus();
}

absl::Status Load::MakeGroup() {
  if (devices.size() == 1) return absl::OkStatus();
  const bool cores_are_shared = ReadMachineShare().cores() < std::ssize(devices);
  auto made = RankGroup::Create(
      devices, {.partial_floats = Transformer::PartialFloats(files.config, *devices[0],
                                                             capacity.max_tokens),
                .spins = cores_are_shared ? 0 : kSpins});
  if (!made.ok()) {
    return absl::Status(made.status().code(),
                        absl::StrCat("for steps of ", capacity.max_tokens, " tokens: ",
                                     made.status().message(), "; lower --chunk-tokens"));
  }
  group = *std::move(made);
  return absl::OkStatus();
}

absl::Status Load::MakeRank(size_t r) {
  Device& device = *devices[r];
  const auto rank = static_cast<int>(r);
  LoadedRank& loaded = model.ranks.emplace_back();
  loaded.shape = ShardOf(files.config, rank, static_cast<int>(devices.size()));
  loaded.weight_bytes = SizeBytes((*weights)[r]);
  Communicator* const communicator = group == nullptr ? nullptr : &group->rank(rank);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> transformer,
      Transformer::Create({.config = files.config,
                           .weights = weights,
                           .rank = rank,
                           .compute = options.compute_dtype,
                           .device = &device,
                           .max_tokens = capacity.max_tokens,
                           .group = communicator,
                           .lead = r == 0 ? nullptr : parts[0].transformer.get()}));
  ASSIGN_OR_RETURN(StepMetadata metadata, StepMetadata::Create(device, capacity));
  std::unique_ptr<StepResults> results, follow_up_results;
  if (r == 0) {
    ASSIGN_OR_RETURN(results, StepResults::Create(device, cpu, model.info, capacity));
  }
  if (options.follow_ups && communicator == nullptr && !device.info().unified) {
    StepCapacity of_follow_up = capacity;
    of_follow_up.max_tokens = capacity.max_rows;
    ASSIGN_OR_RETURN(follow_up_results,
                     StepResults::Create(device, cpu, model.info, of_follow_up, results.get()));
  }
  parts.push_back({.device = &device,
                   .transformer = std::move(transformer),
                   .info = model.info,
                   .metadata = std::move(metadata),
                   .results = std::move(results),
                   .follow_up_results = std::move(follow_up_results),
                   .group = communicator,
                   .graph_shapes = graph_shapes,
                   .nice = options.compute_nice});
  return absl::OkStatus();
}

// Every rank has the same.
absl::StatusOr<int32_t> Load::NumBlocks() const {
  if (options.num_blocks > 0) return options.num_blocks;
  int32_t least = std::numeric_limits<int32_t>::max();
  for (size_t r = 0; r < devices.size(); ++r) {
    ASSIGN_OR_RETURN(
        const int32_t blocks,
        BlocksByMemory(*devices[r], LayoutOfRank(model.ranks[r].shape), options.memory_fraction,
                       model.info.max_model_len,
                       StepGraphs::kBytesOfOne * std::ssize(graph_shapes)));
    least = std::min(least, blocks);
  }
  return least;
}

// After all else that takes the devices' memory, as what is left may be the pools'.
absl::Status Load::MakePools() {
  ASSIGN_OR_RETURN(const int32_t num_blocks, NumBlocks());
  int64_t block_bytes = 0;
  for (const LoadedRank& rank : model.ranks) block_bytes += EntryBytes(LayoutOfRank(rank.shape));
  const int32_t swap_blocks =
      options.swap_blocks < 0 ? DefaultSwapBlocks(block_bytes, num_blocks) : options.swap_blocks;
  for (size_t r = 0; r < devices.size(); ++r) {
    LoadedRank& rank = model.ranks[r];
    const KvLayout layout = LayoutOfRank(rank.shape);
    ASSIGN_OR_RETURN(rank.cache, MakePool(*devices[r], layout, num_blocks, MemoryKind::kDevice));
    parts[r].cache = rank.cache.get();
    if (swap_blocks == 0) continue;
    ASSIGN_OR_RETURN(rank.swap, MakePool(*devices[r], layout, swap_blocks, MemoryKind::kPinned));
    parts[r].swap = rank.swap.get();
  }
  return absl::OkStatus();
}

absl::Status Load::MakeRunner(RunnerSink* sink, LostFn lost) {
  if (group != nullptr) {
    model.group = group.get();
    ASSIGN_OR_RETURN(model.runner,
                     TensorParallelRunner::Create(std::move(parts), std::move(group), sink,
                                                  std::move(lost)));
  } else {
    parts[0].sink = sink;
    parts[0].lost = std::move(lost);
    ASSIGN_OR_RETURN(model.runner, TransformerRunner::Create(std::move(parts[0])));
  }
  model.num_graphs = static_cast<int32_t>(graph_shapes.size());
  for (size_t r = 0; r < devices.size(); ++r) {
    LoadedRank& rank = model.ranks[r];
    ASSIGN_OR_RETURN(rank.memory, MemoryOf(*devices[r], rank.weight_bytes, *rank.cache));
  }
  return absl::OkStatus();
}

// Each reads the sums and embeddings of all, and writes logits where the first reads them.
absl::Status LetReachEachOther(std::span<Device* const> devices) {
  for (Device* const device : devices) {
    for (const Device* const peer : devices) {
      if (peer == device) continue;
      const absl::Status status = device->EnablePeer(*peer);
      if (status.ok()) continue;
      return absl::Status(status.code(),
                          absl::StrCat("tp = ", devices.size(), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

// Before the weights are read.
absl::Status CheckDevices(std::span<Device* const> devices, const ModelNeeds& needs,
                          const ModelConfig& config) {
  const auto size = static_cast<int>(devices.size());
  RETURN_IF_ERROR(CheckRanks(config, size));
  const std::string arithmetic = devices[0]->Arithmetic(needs.compute);
  for (int r = 0; r < size; ++r) {
    if (const std::string other = devices[r]->Arithmetic(needs.compute); other != arithmetic) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tp = ", size, ": rank 0 computes as ", arithmetic, ", rank ", r, " as ", other,
          ": all must be of one kind; choose neighbouring GPUs by --device cuda:N"));
    }
    RETURN_IF_ERROR(devices[r]->CheckModel(needs));
  }
  return LetReachEachOther(devices);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      std::span<Device* const> devices, ModelOps& cpu,
                                      RunnerSink* sink, LostFn lost) {
  RETURN_IF_ERROR(CheckOptions(options));
  const DType kv_dtype = options.kv_dtype.value_or(options.compute_dtype);
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model_dir));
  const ModelNeeds needs{.compute = options.compute_dtype,
                         .kv = kv_dtype,
                         .num_heads = config.num_heads,
                         .num_kv_heads = config.num_kv_heads,
                         .head_dim = config.head_dim,
                         .vocab_size = config.vocab_size,
                         .block_size = options.block_size};
  RETURN_IF_ERROR(CheckDevices(devices, needs, config));
  ASSIGN_OR_RETURN(const ModelFiles files,
                   LoadModelFiles(options.model_dir, {.num_threads = options.load_threads,
                                                      .nice = options.compute_nice}));
  Load load{options, devices, cpu, files, kv_dtype};
  const KvLayout layout =
      LayoutOf(files.config, files.config.num_kv_heads, options.block_size, kv_dtype);
  load.model.info = InfoOf(options, files, *devices[0], layout, kv_dtype);
  load.model.slower = devices[0]->SlowerFor(needs);
  const int32_t longest = load.model.info.max_model_len;
  load.graph_shapes = GraphShapes(options, devices, needs, longest);
  load.capacity = CapacityOf(options, load.graph_shapes, longest, layout);
  RETURN_IF_ERROR(load.PackWeights());
  RETURN_IF_ERROR(load.MakeGroup());
  for (size_t r = 0; r < devices.size(); ++r) RETURN_IF_ERROR(load.MakeRank(r));
  RETURN_IF_ERROR(load.MakePools());
  RETURN_IF_ERROR(load.MakeRunner(sink, std::move(lost)));
  return std::move(load).model;
}

}  // namespace baton
