#include "common/model/cpu_model_runner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"
#include "common/checkpoint/model_files.h"
#include "common/model/cache_planes.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

absl::Status CheckOptions(const CpuModelRunnerOptions& options) {
  if (options.compute_dtype == DType::kF16) {
    return absl::InvalidArgumentError("compute_dtype = f16: must be f32 or bf16");
  }
  if (options.block_size < 1 || options.block_size > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size = ", options.block_size, ": must be in [1, 1024]"));
  }
  if (options.num_blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks = ", options.num_blocks, ": must be at least 1"));
  }
  if (options.max_model_len < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len = ", options.max_model_len, ": must be at least 0"));
  }
  if (options.max_step_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_step_tokens = ", options.max_step_tokens, ": must be at least 1"));
  }
  return absl::OkStatus();
}

// What a worker must share with another for their bits to be equal.
std::string NumericsId(std::string_view kernels, DType compute, DType kv) {
  std::string id(kernels);
  id.append(" compute=").append(ToString(compute));
  id.append(" kv=").append(ToString(kv)).append(" kv_scale=1 tp=1 ").append(Sampler::kVersion);
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

}  // namespace

absl::StatusOr<DType> FastestComputeDType(DType weights, const std::string& kernels) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Kernels> device, MakeKernels({.kernels = kernels}));
  return weights == DType::kBF16 && device->has_bf16_dot() ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<std::unique_ptr<CpuModelRunner>> CpuModelRunner::Create(
    const CpuModelRunnerOptions& options, RunnerSink* sink) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels,
                   MakeKernels({.kernels = options.kernels,
                                .num_threads = options.num_threads,
                                .nice = options.compute_nice}));
  ASSIGN_OR_RETURN(ModelFiles files,
                   LoadModelFiles(options.model_dir, {.max_model_len = options.max_model_len,
                                                      .num_threads = options.num_threads,
                                                      .nice = options.compute_nice}));
  const DType kv_dtype = options.kv_dtype.value_or(options.compute_dtype);
  const KvLayout layout = LayoutOf(files.config, options.block_size, kv_dtype);
  ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, KvCache::Create(layout, options.num_blocks));
  std::unique_ptr<KvCache> swap;
  if (options.swap_blocks > 0) {
    ASSIGN_OR_RETURN(swap, KvCache::Create(layout, options.swap_blocks));
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> transformer,
      Transformer::Create(files.config, files.weights, options.compute_dtype, kernels.get(),
                          [&](std::span<const std::byte> bytes) { files.files.Release(bytes); }));
  transformer->Reserve(options.max_step_tokens, Transformer::kLogitRows);
  ModelInfo info{
      .numerics_id =
          NumericsId(kernels->numerics(options.compute_dtype), options.compute_dtype, kv_dtype),
      .layout = layout,
      .model_digest = files.model_digest,
      .vocab_size = files.config.vocab_size,
      .max_model_len = options.max_model_len > 0
                           ? std::min(options.max_model_len, files.config.max_model_len)
                           : files.config.max_model_len,
      .eos_token_ids = files.eos_token_ids,
  };
  std::unique_ptr<CpuModelRunner> runner(
      new CpuModelRunner(std::move(kernels), std::move(transformer), std::move(cache),
                         std::move(swap), std::move(info), sink));
  runner->thread_ = std::jthread([loop = runner.get(), nice = options.compute_nice](
                                     const std::stop_token& ending) {
    NameThisThread("compute");
    LowerThisThread(nice);
    loop->ComputeLoop(ending);
  });
  return runner;
}

CpuModelRunner::CpuModelRunner(std::unique_ptr<Kernels> kernels,
                               std::unique_ptr<Transformer> transformer,
                               std::unique_ptr<KvCache> cache, std::unique_ptr<KvCache> swap,
                               ModelInfo info, RunnerSink* sink)
    : kernels_(std::move(kernels)),
      transformer_(std::move(transformer)),
      cache_(std::move(cache)),
      swap_(std::move(swap)),
      info_(std::move(info)),
      sink_(sink),
      reader_(kernels_.get(), info_.vocab_size, info_.eos_token_ids) {}

CpuModelRunner::~CpuModelRunner() { Stop(); }

void CpuModelRunner::Stop() { stopping_ = true; }

void CpuModelRunner::Start(std::shared_ptr<const StepPlan> plan) {
  BATON_CHECK(plan != nullptr);
  const std::lock_guard lock(mutex_);
  BATON_CHECK(!busy_);
  busy_ = true;
  next_ = std::move(plan);
  wake_.notify_one();
}

void CpuModelRunner::ComputeLoop(const std::stop_token& ending) {
  for (;;) {
    std::shared_ptr<const StepPlan> plan;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, ending, [this] { return next_ != nullptr; })) return;
      plan = std::move(next_);
    }
    StepDone done = RunStep(*plan);
    plan.reset();
    {
      // The sink may start the next step from within OnStepDone.
      const std::lock_guard lock(mutex_);
      busy_ = false;
    }
    sink_->OnStepDone(std::move(done));
  }
}

absl::Status CpuModelRunner::SwapBlocks(const StepPlan& plan) {
  if (plan.swap_out.empty() && plan.swap_in.empty()) return absl::OkStatus();
  BATON_CHECK(swap_ != nullptr);
  const std::vector<CachePlane> device = AllPlanes(*cache_);
  const std::vector<CachePlane> host = AllPlanes(*swap_);
  const auto copy = [&](const std::vector<CachePlane>& from, const std::vector<CachePlane>& to,
                        const std::vector<BlockMove>& moves) {
    std::vector<BlockRun> runs;
    for (const BlockMove& move : moves) {
      BlockRun* last = runs.empty() ? nullptr : &runs.back();
      if (last != nullptr && last->source + last->count == move.source &&
          last->destination + last->count == move.destination) {
        ++last->count;
      } else {
        runs.push_back({.source = move.source, .destination = move.destination, .count = 1});
      }
    }
    return kernels_->SwapBlocks({.sources = from.data(),
                                 .destinations = to.data(),
                                 .num_planes = static_cast<int64_t>(from.size()),
                                 .runs = runs.data(),
                                 .num_runs = static_cast<int64_t>(runs.size()),
                                 .heads = {}});
  };
  RETURN_IF_ERROR(copy(device, host, plan.swap_out));
  return copy(host, device, plan.swap_in);
}

StepDone CpuModelRunner::RunStep(const StepPlan& plan) {
  const absl::Status stopped = absl::CancelledError("the runner is stopping");
  StepDone done{.step = plan.step, .status = stopping_ ? stopped : SwapBlocks(plan), .rows = {}};
  if (!done.status.ok() || plan.rows.empty()) return done;
  BuildForwardBatch(plan,
                    {.vocab_size = info_.vocab_size,
                     .max_model_len = info_.max_model_len,
                     .block_size = info_.layout.block_size,
                     .num_blocks = cache_->num_blocks(),
                     .window = info_.layout.groups.front().window},
                    batch_);
  done.status = transformer_->Forward(batch_, *cache_, [&](int32_t layer) {
    sink_->OnLayerDone({.step = plan.step, .layer = layer});
  });
  if (done.status.ok()) done.status = ReadLogits(plan, done);
  if (!done.status.ok()) done.rows.clear();
  return done;
}

// A slice of rows at a time: the logits of a long prompt's tokens would take gigabytes, and the
// time of their products and scores is that of many layers.
absl::Status CpuModelRunner::ReadLogits(const StepPlan& plan, StepDone& done) {
  const std::vector<LogitRow> wanted = WantedRows(plan, done.rows);
  BATON_CHECK(wanted.size() == batch_.logit_tokens.size());
  const std::span<const LogitRow> rows = wanted;
  for (size_t first = 0; first < rows.size(); first += Transformer::kLogitRows) {
    const size_t count = std::min<size_t>(Transformer::kLogitRows, rows.size() - first);
    ASSIGN_OR_RETURN(const std::span<const float> logits,
                     transformer_->Logits(static_cast<int64_t>(first), static_cast<int64_t>(count)));
    reader_.Read(logits, rows.subspan(first, count));
    if (count < Transformer::kLogitRows) break;
    sink_->OnRowsDone({.step = plan.step, .rows = static_cast<int32_t>(first + count)});
    if (stopping_) return absl::CancelledError("the runner is stopping");
  }
  return absl::OkStatus();
}

}  // namespace baton
