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

  // Prefills in chunks, then decodes with the reference's tokens forced, `num_steps` outputs. What
  // becomes long is computed again, as the engine does.
  Answer Run(const GoldenCase& golden, size_t num_steps) {
    SamplingContext context{.prompt = golden.prompt_ids};
    context.params.temperature = 0;
    context.params.ignore_eos = true;
    context.params.num_logprobs = 0;
    context.params.num_prompt_logprobs = 0;
    sampling_ = std::make_shared<const SamplingContext>(std::move(context));
    Answer answer;
    std::vector<int32_t> tokens = golden.prompt_ids;
    Compute(tokens, 0, num_steps > 0, answer);
    const std::vector<float> prompt_logprobs = answer.prompt_logprobs;
    for (size_t i = 0; i + 1 < num_steps; ++i) {
      const bool was_long = IsLong(tokens.size());
      tokens.push_back(golden.greedy_ids[i]);
      const bool outgrown = IsLong(tokens.size()) != was_long;
      Compute(tokens, outgrown ? 0 : tokens.size() - 1, true, answer);
    }
    answer.prompt_logprobs = prompt_logprobs;
    return answer;
  }

 private:
  static constexpr int32_t kBlockSize = 16;
  static constexpr int32_t kNumBlocks = 100;
  static constexpr size_t kChunkTokens = 128;

  bool IsLong(size_t num_tokens) const {
    const auto original = static_cast<size_t>(runner_->info().original_len);
    return original > 0 && num_tokens > original;
  }

  // From the token at `begin` on.
  void Compute(const std::vector<int32_t>& tokens, size_t begin, bool sample, Answer& answer) {
    for (size_t at = begin; at < tokens.size(); at += kChunkTokens) {
      const size_t end = std::min(at + kChunkTokens, tokens.size());
      is_long_ = IsLong(tokens.size());
      Step({tokens.begin() + at, tokens.begin() + end}, static_cast<int32_t>(at),
           sample && end == tokens.size(), answer);
    }
  }

  void Step(std::vector<int32_t> tokens, int32_t context_len, bool sample, Answer& answer) {
    StepRow row{.sequence = {.router = 1, .counter = 1},
                .tokens = std::move(tokens),
                .context_len = context_len,
                .sample = sample,
                .sampling = sampling_,
                .is_long = is_long_};
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
  bool is_long_ = false;
};

}  // namespace baton
