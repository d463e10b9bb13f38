#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/golden/golden_file.h"
#include "tests/unit/common/model/loaded_runner.h"

namespace baton {

// Hands the result of a step to the thread that waits for it.
class WaitingSink : public RunnerSink {
 public:
  void OnLayerDone(const LayerDone&) override {}
  void OnRowsDone(const RowsDone&) override {}
  void OnStepDone(StepDone done) override {
    const std::lock_guard lock(mutex_);
    done_ = std::move(done);
    arrived_.notify_one();
  }
  StepDone Wait() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return done_.has_value(); });
    StepDone done = *std::move(done_);
    done_.reset();
    return done;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::optional<StepDone> done_;
};

struct Answer {
  std::vector<float> prompt_logprobs;
  std::vector<TokenOutput> outputs;  // Each given the reference's tokens before it.
};

// A model that answers what a golden file asks.
class ModelUnderTest {
 public:
  explicit ModelUnderTest(RunnerOptions options) {
    options.num_blocks = kNumBlocks;
    auto runner = LoadedRunner::Create(options, &sink_);
    EXPECT_TRUE(runner.ok()) << runner.status();
    if (runner.ok()) runner_ = *std::move(runner);
  }
  bool ok() const { return runner_ != nullptr; }
  LoadedRunner& runner() { return *runner_; }

  // Prefills in chunks, then decodes with the reference's tokens forced, `num_steps` outputs.
  Answer Run(const GoldenCase& golden, size_t num_steps) {
    SamplingContext context{.prompt = golden.prompt_ids};
    context.params.temperature = 0;
    context.params.ignore_eos = true;
    context.params.num_logprobs = 0;
    context.params.num_prompt_logprobs = 0;
    sampling_ = std::make_shared<const SamplingContext>(std::move(context));
    Answer answer;
    const auto length = static_cast<int32_t>(golden.prompt_ids.size());
    for (int32_t at = 0; at < length; at += kChunkTokens) {
      const int32_t end = std::min(at + kChunkTokens, length);
      Step({golden.prompt_ids.begin() + at, golden.prompt_ids.begin() + end}, at,
           end == length && num_steps > 0, answer);
    }
    for (size_t i = 0; i + 1 < num_steps; ++i) {
      Step({golden.greedy_ids[i]}, length + static_cast<int32_t>(i), true, answer);
    }
    return answer;
  }

 private:
  static constexpr int32_t kBlockSize = 16;
  static constexpr int32_t kNumBlocks = 100;
  static constexpr int32_t kChunkTokens = 128;

  void Step(std::vector<int32_t> tokens, int32_t context_len, bool sample, Answer& answer) {
    StepRow row{.sequence = {.router = 1, .counter = 1},
                .tokens = std::move(tokens),
                .context_len = context_len,
                .sample = sample,
                .sampling = sampling_};
    row.num_emitted = static_cast<int32_t>(answer.outputs.size());
    const int32_t total = context_len + static_cast<int32_t>(row.tokens.size());
    // Any order of blocks must do; each group of layers has its own.
    const int32_t num_groups = NumGroups(runner_->info().layout);
    for (BlockId end = num_groups * kNumBlocks; end > 0; end -= kNumBlocks) {
      for (BlockId i = 0; i * kBlockSize < total; ++i) row.block_table.push_back(end - 1 - i);
    }
    auto plan = std::make_shared<StepPlan>();
    plan->step = ++step_;
    plan->rows.push_back(std::move(row));
    runner_->Start(plan);
    const StepDone done = sink_.Wait();
    ASSERT_TRUE(done.status.ok()) << done.status;
    ASSERT_EQ(done.rows.size(), 1u);
    for (const PromptLogprob& p : done.rows[0].prompt_logprobs) {
      answer.prompt_logprobs.push_back(p.logprob);
    }
    if (done.rows[0].sampled) answer.outputs.push_back(done.rows[0].output);
  }

  WaitingSink sink_;
  std::unique_ptr<LoadedRunner> runner_;
  std::shared_ptr<const SamplingContext> sampling_;
  uint64_t step_ = 0;
};

}  // namespace baton
