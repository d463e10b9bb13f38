// The work of a serving cluster done by the engine alone: streams in closed loop through scheduler
// and runner in one process, without HTTP, routing and handoff. What tests/bench/cluster.py
// compares a cluster with.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/engine/engine.h"
#include "tests/unit/common/model/loaded_runner.h"
#include "tests/bench/machine_roofs.h"
#include "tests/bench/random_model.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

struct Options {
  std::string model = "1B";
  std::string models;
  std::string compute = "auto";
  int threads = static_cast<int>(std::jthread::hardware_concurrency());
  int streams = 1;
  int requests = 3;  // Of each stream.
  int prompt_tokens = 512;
  int answer_tokens = 64;
  bool json = false;
};

constexpr int32_t kBlockSize = 16;
// Of the vocabulary: no special tokens.
constexpr int32_t kFirstWord = 259;

class StepSink : public RunnerSink {
 public:
  void OnLayerDone(const LayerDone&) override {}
  void OnRowsDone(const RowsDone&) override {}
  void OnStepDone(StepDone done) override {
    done_ = std::move(done);
    ended_.release();
  }
  StepDone Wait() {
    ended_.acquire();
    return std::move(done_);
  }

 private:
  StepDone done_;
  std::binary_semaphore ended_{0};
};

Time TimeNow() { return Time(Duration(static_cast<int64_t>(Now() * 1e9))); }

double Percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

class Streams {
 public:
  Streams(const Options& options, const LoadedRunner& runner, int32_t num_blocks)
      : options_(options),
        model_(runner.info()),
        allocator_(num_blocks, kBlockSize, /*hash_secret=*/1) {}

  void Run(ModelRunner& runner, StepSink& sink) {
    Engine engine({.chunk_tokens = 512, .max_batch_sequences = 64}, model_, allocator_, runner);
    requests_left_ = options_.streams * options_.requests;
    const double start = Now();
    for (int i = 0; i < options_.streams; ++i) Submit(engine);
    while (engine.num_running() > 0) {
      engine.StartStep(TimeNow());
      StepDone done = sink.Wait();
      BATON_CHECK(done.status.ok());
      for (SequenceProgress& progress : engine.OnStepDone(std::move(done), TimeNow())) {
        if (progress.output) Record(progress.call);
        if (progress.released == nullptr) continue;
        request_.push_back(last_token_[progress.call] - submitted_[progress.call]);
        progress.released.reset();  // Its blocks may be needed at once.
        Submit(engine);
      }
    }
    seconds_ = Now() - start;
  }

  std::vector<Row> Rows(const std::string& name) const {
    const double tokens =
        static_cast<double>(options_.streams) * options_.requests * options_.answer_tokens;
    const double p50 = Percentile(gaps_, 0.5);
    const double p99 = Percentile(gaps_, 0.99);
    return {{.name = name + "TTFT p50", .value = Percentile(ttft_, 0.5) * 1e3, .unit = "ms"},
            {.name = name + "inter-token p50", .value = p50 * 1e3, .unit = "ms"},
            {.name = name + "inter-token p99", .value = p99 * 1e3, .unit = "ms"},
            {.name = name + "inter-token p99 : p50", .value = p99 / p50, .unit = "x"},
            {.name = name + "request p50", .value = Percentile(request_, 0.5) * 1e3, .unit = "ms"},
            {.name = name + "output", .value = tokens / seconds_, .unit = "tok/s"}};
  }

 private:
  // The next request of a stream; nothing when all were made.
  void Submit(Engine& engine) {
    if (requests_left_ == 0) return;
    --requests_left_;
    auto sequence = std::make_unique<Sequence>();
    sequence->call = last_token_.size();
    sequence->id.counter = sequence->call;
    for (int i = 0; i < options_.prompt_tokens; ++i) {
      sequence->tokens.push_back(
          kFirstWord + static_cast<int32_t>(random_.Below(model_.vocab_size - kFirstWord)));
    }
    sequence->prompt_length = options_.prompt_tokens;
    auto sampling = std::make_shared<SamplingContext>();
    sampling->prompt = sequence->tokens;
    sampling->params = {.temperature = 0, .max_tokens = options_.answer_tokens, .ignore_eos = true};
    sequence->sampling = std::move(sampling);
    sequence->arrival = TimeNow();
    BATON_CHECK(allocator_.Grow(sequence->blocks, allocator_.BlocksFor(options_.prompt_tokens)));
    submitted_.push_back(Now());
    last_token_.push_back(0);
    engine.Add(std::move(sequence));
  }

  void Record(CallId call) {
    const double now = Now();
    if (last_token_[call] == 0) {
      ttft_.push_back(now - submitted_[call]);
    } else {
      gaps_.push_back(now - last_token_[call]);
    }
    last_token_[call] = now;
  }

  const Options& options_;
  const ModelInfo model_;
  BlockAllocator allocator_;
  Random random_{7};
  int requests_left_ = 0;
  double seconds_ = 0;
  std::vector<double> submitted_, last_token_;  // By call; 0: none yet.
  std::vector<double> ttft_, gaps_, request_;
};

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const ModelShape shape, ShapeOf(options.model));
  const ModelsFolder folder(options.models);
  ASSIGN_OR_RETURN(const std::string dir, MakeRandomModel(shape, folder.dir()));
  DType compute = options.compute == "bf16" ? DType::kBF16 : DType::kF32;
  if (options.compute == "auto") {
    ASSIGN_OR_RETURN(const Processors cpu, MakeDevice({}));
    compute = cpu.device->FastestCompute(DType::kBF16);
  }
  const int32_t num_blocks =
      options.streams * ((options.prompt_tokens + options.answer_tokens) / kBlockSize + 1);
  StepSink sink;
  ASSIGN_OR_RETURN(const auto runner, LoadedRunner::Create({.model_dir = dir,
                                                              .compute_dtype = compute,
                                                              .block_size = kBlockSize,
                                                              .num_blocks = num_blocks,
                                                              .num_threads = options.threads,
                                                              .max_step_tokens = 512},
                                                             &sink));
  Options warm_up = options;
  warm_up.streams = warm_up.requests = 1;
  warm_up.answer_tokens = 2;
  Streams(warm_up, *runner, num_blocks).Run(runner->runner(), sink);
  Streams streams(options, *runner, num_blocks);
  streams.Run(runner->runner(), sink);
  const std::string name = options.model + " " + std::to_string(options.streams) +
                           (options.streams == 1 ? " stream " : " streams ");
  Print("streams",
        runner->kernels_name() + ", " + runner->info().numerics_id + ", " +
            std::to_string(options.threads) + " threads, engine alone, " +
            std::to_string(options.prompt_tokens) + " in, " +
            std::to_string(options.answer_tokens) + " out, " + std::to_string(options.requests) +
            " requests a stream",
        streams.Rows(name), options.json);
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  CLI::App app("Streams in closed loop through the engine alone: TTFT, inter-token time, tokens/s");
  baton::bench::Options options;
  bool quick = false;
  app.add_option("--model", options.model, "125M or 1B")->capture_default_str();
  app.add_option("--models", options.models, "Folder that keeps the models for the next run");
  app.add_option("--compute-dtype", options.compute)
      ->check(CLI::IsMember({"auto", "bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--streams", options.streams)->capture_default_str();
  app.add_option("--requests", options.requests, "Of each stream")->capture_default_str();
  app.add_option("--prompt-tokens", options.prompt_tokens)->capture_default_str();
  app.add_option("--answer-tokens", options.answer_tokens)->capture_default_str();
  app.add_flag("--quick", quick, "Seconds: 125M, one request of each stream, short answers");
  app.add_flag("--json", options.json, "For machines");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    options.model = "125M";
    options.requests = 1;
    options.prompt_tokens = 64;
    options.answer_tokens = 4;
  }
  const absl::Status status = baton::bench::Run(options);
  if (!status.ok()) std::fprintf(stderr, "bench_streams: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
