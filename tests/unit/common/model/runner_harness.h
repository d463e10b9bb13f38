#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/unit/common/model/loaded_runner.h"

namespace baton {

// Keeps what a runner reports until the test asks for it.
class RecordingSink : public RunnerSink {
 public:
  void OnLayerDone(const LayerDone& done) override {
    const std::lock_guard lock(mutex_);
    layers_.push_back(done);
  }
  void OnRowsDone(const RowsDone& done) override {
    const std::lock_guard lock(mutex_);
    marks_.push_back({.layers = layers_.size(), .rows = done});
  }
  void OnStepDone(StepDone done) override {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
    changed_.notify_all();
  }

  StepDone WaitForStep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !done_.empty(); });
    StepDone done = std::move(done_.front());
    done_.pop_front();
    return done;
  }
  bool HasStep() {
    const std::lock_guard lock(mutex_);
    return !done_.empty();
  }
  // A RowsDone, and how many layers had been reported before it.
  struct Mark {
    size_t layers = 0;
    RowsDone rows;
  };
  std::vector<Mark> TakeMarks() {
    const std::lock_guard lock(mutex_);
    return std::exchange(marks_, {});
  }
  std::vector<LayerDone> TakeLayers() {
    const std::lock_guard lock(mutex_);
    return std::exchange(layers_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LayerDone> layers_;
  std::vector<Mark> marks_;
  std::deque<StepDone> done_;
};

// A runner that a test steps synchronously, and sequences that own fixed runs of blocks.
class RunnerHarness {
 public:
  explicit RunnerHarness(const RunnerOptions& options, RecordingSink* sink = nullptr)
      : sink_(sink == nullptr ? &own_sink_ : sink) {
    // A runner that is lost never ends its step.
    auto runner = LoadedRunner::Create(options, sink_, [](const absl::Status& status) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::abort();
    });
    if (!runner.ok()) std::fprintf(stderr, "%s\n", runner.status().ToString().c_str());
    BATON_CHECK(runner.ok());
    runner_ = *std::move(runner);
  }

  LoadedRunner& runner() { return *runner_; }
  RecordingSink& sink() { return *sink_; }

  StepDone Step(std::vector<StepRow> rows) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = ++step_;
    plan->rows = std::move(rows);
    runner_->Start(std::move(plan));
    return sink_->WaitForStep();
  }

  StepDone Move(std::vector<BlockMove> out, std::vector<BlockMove> in) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = ++step_;
    plan->swap_out = std::move(out);
    plan->swap_in = std::move(in);
    runner_->Start(std::move(plan));
    return sink_->WaitForStep();
  }

  // The blocks first, first + stride, ... that hold num_tokens; of each group of layers in a part
  // of the pool of its own.
  std::vector<BlockId> Blocks(int32_t num_tokens, BlockId first = 0, int32_t stride = 1) const {
    const KvLayout& layout = runner_->info().layout;
    const int32_t entries = (num_tokens + layout.block_size - 1) / layout.block_size;
    const int32_t part = runner_->cache().num_blocks() / NumGroups(layout);
    std::vector<BlockId> blocks;
    for (int32_t g = 0; g < NumGroups(layout); ++g) {
      for (int32_t i = 0; i < entries; ++i) blocks.push_back(g * part + first + i * stride);
    }
    return blocks;
  }

 private:
  RecordingSink own_sink_;
  RecordingSink* const sink_;
  std::unique_ptr<LoadedRunner> runner_;
  uint64_t step_ = 0;
};

// What one sequence produced.
struct Generated {
  std::vector<TokenOutput> outputs;
  std::vector<PromptLogprob> prompt_logprobs;
};

struct GenerateOptions {
  int32_t chunk_tokens = 2048;
  int32_t num_tokens = 8;
  BlockId first_block = 0;
  int32_t block_stride = 1;
  bool drop_passed = true;      // Blocks behind the model's window are not in the tables.
  std::vector<int32_t> forced;  // If given, fed back in place of what was sampled.
};

// Prefills `context->prompt` in chunks and decodes, alone in each step.
inline Generated Generate(RunnerHarness& harness, std::shared_ptr<const SamplingContext> context,
                          const GenerateOptions& options) {
  Generated out;
  std::vector<int32_t> tokens = context->prompt;
  const auto prompt = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> emitted;
  int32_t computed = 0;
  while (static_cast<int32_t>(out.outputs.size()) < options.num_tokens) {
    const auto known = static_cast<int32_t>(tokens.size());
    const int32_t end = std::min(known, computed + options.chunk_tokens);
    std::vector<BlockId> blocks = harness.Blocks(end, options.first_block, options.block_stride);
    const KvLayout& layout = harness.runner().info().layout;
    const auto entries = std::ssize(blocks) / NumGroups(layout);
    for (int32_t g = 0; options.drop_passed && g < NumGroups(layout); ++g) {
      const int32_t behind = TokensBehindWindow(layout.groups[g].window, computed);
      std::fill_n(blocks.begin() + g * entries, behind / layout.block_size, -1);
    }
    StepRow row{.tokens = {tokens.begin() + computed, tokens.begin() + end},
                .context_len = computed,
                .block_table = std::move(blocks),
                .sample = end == known,
                .sampling = context,
                .emitted = emitted,
                .num_emitted = static_cast<int32_t>(emitted.size())};
    StepDone done = harness.Step({std::move(row)});
    BATON_CHECK(done.status.ok() && done.rows.size() == 1);
    RowResult& result = done.rows[0];
    for (PromptLogprob& p : result.prompt_logprobs) out.prompt_logprobs.push_back(std::move(p));
    computed = end;
    if (!result.sampled) continue;
    BATON_CHECK(result.output.position == known && known - prompt == row.num_emitted);
    const size_t index = out.outputs.size();
    const int32_t next =
        index < options.forced.size() ? options.forced[index] : result.output.token;
    out.outputs.push_back(std::move(result.output));
    tokens.push_back(next);
    emitted.push_back(next);
  }
  return out;
}

}  // namespace baton
