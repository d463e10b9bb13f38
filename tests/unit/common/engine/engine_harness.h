#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "gtest/gtest.h"

namespace baton {

// Records the plans; the test says when a step ends and what it produced.
class ScriptedRunner : public ModelRunner {
 public:
  void Start(std::shared_ptr<const StepPlan> plan) override { plans.push_back(std::move(plan)); }
  std::vector<std::shared_ptr<const StepPlan>> plans;
};

// An engine over a pool of small blocks, and sequences for it.
class EngineHarness : public testing::Test {
 protected:
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kBlockSize = 4;

  void SetUp() override { Create({.chunk_tokens = 8}, 64); }
  void TearDown() override { EXPECT_EQ(pool_->Audit(), ""); }

  // `window` as in KvLayerGroup.
  void Create(const EngineOptions& options, int32_t num_blocks, int32_t block_size = kBlockSize,
              int32_t window = 0) {
    Create(options, num_blocks,
           KvLayout{.block_size = block_size, .groups = {{.num_layers = 1, .window = window}}});
  }
  void Create(const EngineOptions& options, int32_t num_blocks, KvLayout layout) {
    engine_.reset();
    model_.eos_token_ids = {kEos};
    model_.layout = std::move(layout);
    pool_ = std::make_unique<BlockAllocator>(num_blocks, model_.layout.block_size, 5,
                                             WindowsOf(model_.layout));
    engine_ = std::make_unique<Engine>(options, model_, *pool_, runner_);
  }

  std::unique_ptr<Sequence> New(CallId call, int32_t prompt_length, SamplingParams params = {}) {
    auto context = std::make_shared<SamplingContext>();
    params.max_tokens = params.max_tokens == 16 ? 1000 : params.max_tokens;
    context->params = params;
    auto sequence = std::make_unique<Sequence>();
    sequence->id = {1, call};
    sequence->call = call;
    // Prompts of different calls differ, so that nothing is shared by chance.
    for (int32_t i = 0; i < prompt_length; ++i) {
      sequence->tokens.push_back(static_cast<int32_t>(call) * 1000 + i);
    }
    sequence->prompt_length = prompt_length;
    sequence->sampling = std::move(context);
    sequence->tenant = "t";
    sequence->arrival = Time(std::chrono::seconds(call));  // Lower calls are older.
    return sequence;
  }

  // A prompt with all its blocks, nothing computed.
  std::unique_ptr<Sequence> Prompt(CallId call, int32_t length, SamplingParams params = {}) {
    auto sequence = New(call, length, params);
    EXPECT_TRUE(pool_->Grow(sequence->blocks, pool_->BlocksFor(length)));
    return sequence;
  }

  // A computed prompt with its first token, as a decode worker has it after a handoff.
  std::unique_ptr<Sequence> Decoding(CallId call, int32_t prompt_length,
                                     SamplingParams params = {}) {
    auto sequence = Prompt(call, prompt_length, params);
    pool_->Seal(sequence->blocks, "t", sequence->tokens);
    sequence->num_computed = prompt_length;
    sequence->tokens.push_back(50);
    return sequence;
  }

  // Starts a step; null when there is none to start.
  const StepPlan* Start() {
    const size_t before = runner_.plans.size();
    engine_->StartStep(now_);
    return runner_.plans.size() > before ? runner_.plans.back().get() : nullptr;
  }

  // Ends the step in flight after `took`; every sampling row gets `token`.
  std::vector<SequenceProgress> Finish(int32_t token = 60, Duration took = kStepTime) {
    const StepPlan& plan = *engine_->step_in_flight();
    StepDone done{.step = plan.step};
    for (const StepRow& row : plan.rows) {
      const auto end = row.context_len + static_cast<int32_t>(row.tokens.size());
      done.rows.push_back({.sequence = row.sequence,
                           .sampled = row.sample,
                           .output = {.position = end, .token = token}});
    }
    return engine_->OnStepDone(std::move(done), now_ += took);
  }

  static std::vector<uint64_t> Calls(const StepPlan& plan) {
    std::vector<uint64_t> calls;
    for (const StepRow& row : plan.rows) calls.push_back(row.sequence.counter);
    return calls;
  }
  static std::vector<int32_t> Lengths(const StepPlan& plan) {
    std::vector<int32_t> lengths;
    for (const StepRow& row : plan.rows) lengths.push_back(static_cast<int32_t>(row.tokens.size()));
    return lengths;
  }
  static std::vector<int32_t> Contexts(const StepPlan& plan) {
    std::vector<int32_t> contexts;
    for (const StepRow& row : plan.rows) contexts.push_back(row.context_len);
    return contexts;
  }

  // Exactly the budget, so that its size stays as it is.
  static constexpr Duration kStepTime = std::chrono::milliseconds(250);
  ModelInfo model_;
  Time now_{};
  ScriptedRunner runner_;
  std::unique_ptr<BlockAllocator> pool_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace baton
