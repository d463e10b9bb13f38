// The CPU engine on random-weight models, Llama's and one with experts: prefill and decode beside
// the machine's roofs, time to load and peak memory.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <semaphore>
#include <string>
#include <thread>

#include "common/base/check.h"
#include "common/base/thread_pool.h"
#include "tests/bench/measure.h"
#include "tests/bench/random_model.h"
#include "tests/bench/sampling_bench.h"
#include "tests/unit/common/model/loaded_runner.h"

namespace baton::bench {
namespace {

struct Options {
  std::string kernels = "auto";
  std::string compute = "bf16";
  std::string model;   // Empty: all.
  std::string work;    // Only what has this in its name.
  std::string models;  // Kept here; empty: made for this run.
  int threads = static_cast<int>(std::jthread::hardware_concurrency());
  int tp = 1;  // That share the threads.
  int repeats = 5;
  bool quick = false;
  bool json = false;
};

constexpr int32_t kBlockSize = 16;
constexpr int32_t kChunkTokens = 512;
constexpr int32_t kNumBlocks = 32 * (512 / kBlockSize + 1);

class StepSink : public RunnerSink {
 public:
  void OnLayerDone(const LayerDone&) override {}
  void OnRowsDone(const RowsDone&) override {}
  void OnStepDone(StepDone done) override {
    BATON_CHECK(done.status.ok());
    ended_.release();
  }
  void Wait() { ended_.acquire(); }

 private:
  std::binary_semaphore ended_{0};
};

int64_t ParametersWith(const ModelShape& s, int64_t experts) {
  const int64_t kv = s.hidden / s.heads * s.kv_heads;
  const int64_t mlps = std::max<int64_t>(experts, 1) * 3 * s.hidden * s.ffn;
  const int64_t router = s.experts * s.hidden;
  return s.layers * (2 * s.hidden * s.hidden + 2 * kv * s.hidden + mlps + router);
}

int64_t MatrixParameters(const ModelShape& s) { return ParametersWith(s, s.experts); }
// That one token's pass reads.
int64_t ReadParameters(const ModelShape& s) { return ParametersWith(s, s.top_k); }

// Peak resident bytes of this process since ResetPeak.
double PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) * 1024;
  }
  return 0;
}

// Seconds that the threads need to touch so much fresh memory: on a host that gives a virtual
// machine its memory page by page, most of a load.
double TouchSeconds(int64_t bytes, ThreadPool& pool) {
  const size_t size = static_cast<size_t>(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  BATON_CHECK(data != MAP_FAILED);
  madvise(data, size, MADV_HUGEPAGE);
  constexpr int64_t kPiece = int64_t{2} << 20;
  constexpr int64_t kPage = 4096;
  const double start = Now();
  pool.ParallelFor((bytes + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    auto* at = static_cast<volatile char*>(data);
    const int64_t end = std::min(bytes, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; i += kPage) at[i] = 1;
  });
  const double seconds = Now() - start;
  munmap(data, size);
  return seconds;
}

void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

class EngineBench {
 public:
  EngineBench(const Options& options, const ModelShape& shape, const std::string& dir)
      : options_(options), shape_(shape) {
    ResetPeak();
    const double start = Now();
    auto runner = LoadedRunner::Create(
        {.model_dir = dir,
         .compute_dtype = options.compute == "bf16" ? DType::kBF16 : DType::kF32,
         .block_size = kBlockSize,
         .num_blocks = kNumBlocks,
         .num_threads = std::max(1, options.threads / options.tp),
         .kernels = options.kernels,
         .tp = options.tp,
         .max_step_tokens = kChunkTokens},
        &sink_);
    if (!runner.ok()) std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
    BATON_CHECK(runner.ok());
    runner_ = *std::move(runner);
    load_seconds_ = Now() - start;
    FillCache();
    Decode(32, 512);
    Prefill(kChunkTokens);
    peak_bytes_ = PeakBytes();
  }

  const LoadedRunner& runner() const { return *runner_; }
  double load_seconds() const { return load_seconds_; }
  double peak_bytes() const { return peak_bytes_; }
  int64_t weight_bytes() const {
    return 2 * (MatrixParameters(shape_) + 2 * shape_.vocab * shape_.hidden);
  }
  double model_bytes() const {
    return static_cast<double>(weight_bytes()) +
           static_cast<double>(kNumBlocks * BlockBytes(runner_->info().layout));
  }

  // Seconds of a prompt of so many tokens, in chunks.
  double Prefill(int32_t num_tokens) {
    const double start = Now();
    for (int32_t at = 0; at < num_tokens; at += kChunkTokens) {
      const int32_t count = std::min(kChunkTokens, num_tokens - at);
      auto plan = std::make_shared<StepPlan>();
      plan->rows.push_back({.tokens = std::vector<int32_t>(count, 7),
                            .context_len = at,
                            .block_table = Blocks(0, at + count, 0),
                            .sample = at + count == num_tokens,
                            .sampling = sampling_});
      Step(std::move(plan));
    }
    return Now() - start;
  }

  // Seconds of a step of `batch` sequences, each with `context` tokens in the end.
  double Decode(int32_t batch, int32_t context) {
    auto plan = std::make_shared<StepPlan>();
    for (int32_t i = 0; i < batch; ++i) {
      plan->rows.push_back({.tokens = {7 + i},
                            .context_len = context - 1,
                            .block_table = Blocks(i, context, kNumBlocks / std::max(32, batch)),
                            .sample = true,
                            .sampling = sampling_});
    }
    const double start = Now();
    Step(std::move(plan));
    return Now() - start;
  }

 private:
  void Step(std::shared_ptr<StepPlan> plan) {
    plan->step = ++step_;
    runner_->Start(std::move(plan));
    sink_.Wait();
  }

  // A prompt beyond the pool of one sequence goes on in its neighbours' blocks.
  std::vector<BlockId> Blocks(int32_t sequence, int32_t num_tokens, int32_t blocks_each) const {
    std::vector<BlockId> blocks;
    const int32_t first = sequence * blocks_each;
    for (int32_t i = 0; i * kBlockSize < num_tokens; ++i) {
      blocks.push_back((first + i) % kNumBlocks);
    }
    return blocks;
  }

  // As if prompts had been computed: pages that exist, values that are not zero.
  void FillCache() {
    for (size_t rank = 0; rank < runner_->num_ranks(); ++rank) {
      const KvCache& cache = runner_->cache(rank);
      const int32_t heads = cache.layout().groups[0].num_kv_heads;
      for (int32_t layer = 0; layer < NumLayers(cache.layout()); ++layer) {
        for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
          for (BlockId block = 0; block < kNumBlocks; ++block) {
            for (int32_t head = 0; head < heads; ++head) {
              const auto bytes = cache.HeadBlock(layer, plane, block, head);
              std::memset(bytes.data(), 0x3c, bytes.size());
            }
          }
        }
      }
    }
  }

  const Options& options_;
  ModelShape shape_;
  StepSink sink_;
  std::unique_ptr<LoadedRunner> runner_;
  std::shared_ptr<SamplingContext> sampling_ = [] {
    auto context = std::make_shared<SamplingContext>();
    context->prompt = {7};
    context->params.temperature = 0;
    return context;
  }();
  uint64_t step_ = 0;
  double load_seconds_ = 0;
  double peak_bytes_ = 0;
};

std::vector<Work> WorkOf(const ModelShape& shape, EngineBench& bench) {
  const auto matrices = static_cast<double>(ReadParameters(shape));
  const auto head = static_cast<double>(shape.vocab * shape.hidden);
  const double kv_token =
      static_cast<double>(BlockBytes(bench.runner().info().layout)) / kBlockSize;
  std::vector<Work> all;
  for (const int32_t tokens : {512, 4096}) {
    if (shape.experts > 0) continue;  // How many experts are read is not known from outside.
    all.push_back({.name = std::string(shape.name) + " prefill " + std::to_string(tokens),
                   .ops = 2 * (matrices * tokens + head),
                   .bytes = 2 * (matrices + head),
                   .tokens = static_cast<double>(tokens),
                   .seconds = [&bench, tokens] { return bench.Prefill(tokens); }});
  }
  constexpr struct {
    int32_t batch, context;
  } kDecodes[] = {{1, 512}, {8, 128}, {8, 512}, {32, 128}, {32, 512}};
  for (const auto& [batch, context] : kDecodes) {
    if (shape.experts > 0 && batch > 1) continue;
    constexpr int kSteps = 4;
    all.push_back({.name = std::string(shape.name) + " decode batch " + std::to_string(batch) +
                           " context " + std::to_string(context),
                   .ops = 2.0 * (matrices + head) * batch * kSteps,
                   .bytes = (2 * (matrices + head) + kv_token * batch * context) * kSteps,
                   .tokens = static_cast<double>(batch * kSteps),
                   .seconds = [&bench, batch, context] {
                     double sum = 0;
                     for (int i = 0; i < kSteps; ++i) sum += bench.Decode(batch, context);
                     return sum;
                   }});
  }
  return all;
}

void Run(const Options& options, const ModelShape& shape, std::vector<Row>& rows,
         std::string* about) {
  const ModelsFolder folder(options.models);
  const auto dir = MakeRandomModel(shape, folder.dir());
  if (!dir.ok()) std::fprintf(stderr, "bench_engine: %s\n", dir.status().ToString().c_str());
  BATON_CHECK(dir.ok());
  EngineBench bench(options, shape, *dir);
  *about = bench.runner().kernels_name() + ", " + bench.runner().info().numerics_id + ", " +
           std::to_string(options.threads) + " threads, tp " + std::to_string(options.tp) +
           ", best of " + std::to_string(options.repeats);
  const std::string name = shape.name;
  ThreadPool pool(options.threads);
  rows.push_back({.name = name + " load, start to ready",
                  .value = bench.load_seconds(),
                  .unit = "s",
                  .roof = TouchSeconds(bench.weight_bytes(), pool),
                  .roof_name = "first touch of as much memory"});
  rows.push_back({.name = name + " peak memory",
                  .value = bench.peak_bytes() * 1e-9,
                  .unit = "GB",
                  .roof = bench.model_bytes() * 1e-9,
                  .roof_name = "weights + KV"});
  MachineRoofs roofs(&pool, options.kernels);
  for (const Work& work : WorkOf(shape, bench)) {
    if (work.name.find(options.work) == std::string::npos) continue;
    rows.push_back(MeasureBesideRoof(work, options.repeats, options.compute == "bf16", roofs));
  }
  if ((name + " sampling").find(options.work) == std::string::npos) return;
  const auto step = [&bench] { return bench.Decode(kSampledRows, 128); };
  for (Row& row : MeasureSampling(name, options.kernels, options.threads, options.repeats, step)) {
    rows.push_back(std::move(row));
  }
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("Prefill and decode of the CPU engine, each beside its roof of the same run");
  baton::bench::Options options;
  app.add_option("--kernels", options.kernels)->capture_default_str();
  app.add_option("--compute-dtype", options.compute)
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--model", options.model, "Only 125M, 1B or MoE")
      ->check(CLI::IsMember({"125M", "1B", "MoE"}));
  app.add_option("--work", options.work, "Only rows with this in their name, e.g. prefill");
  app.add_option("--models", options.models, "Folder that keeps the models for the next run");
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--tp", options.tp, "Ranks that share the threads")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats)->capture_default_str();
  app.add_flag("--quick", options.quick, "Seconds: the 125M model, each row once");
  app.add_flag("--json", options.json, "For machines");
  CLI11_PARSE(app, argc, argv);
  if (options.quick) {
    options.model = "125M";
    options.repeats = 1;
  }
  std::vector<baton::bench::Row> rows;
  std::string about;
  for (const auto& shape : {baton::bench::k125M, baton::bench::k1B, baton::bench::kMoE}) {
    if (!options.model.empty() && options.model != shape.name) continue;
    baton::bench::Run(options, shape, rows, &about);
  }
  baton::bench::Print("engine", about, rows, options.json);
  return 0;
}
