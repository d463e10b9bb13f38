#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {

// Sequences that are decoded in one batch, one step after the other or with two in flight: then
// each step but the first starts when the first layer of the one before it is reported, before
// anybody knows its tokens.
class FollowUpSteps : public RunnerSink {
 public:
  using Contexts = std::vector<std::shared_ptr<const SamplingContext>>;
  using Outputs = std::vector<std::vector<TokenOutput>>;  // Of each sequence.

  // Sequence i gets num_tokens[i].
  FollowUpSteps(RunnerOptions options, Contexts contexts, std::vector<int32_t> num_tokens)
      : contexts_(std::move(contexts)), num_tokens_(std::move(num_tokens)) {
    options.follow_ups = true;
    auto runner = LoadedRunner::Create(options, this, [](const absl::Status& status) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::abort();
    });
    BATON_CHECK(runner.ok());
    runner_ = *std::move(runner);
    starts_within_ = options.tp == 1;
  }

  LoadedRunner& runner() { return *runner_; }
  // Asked whenever a step is reported.
  void set_on_done(std::function<void()> on_done) { on_done_ = std::move(on_done); }

  // With two in flight each step but the first starts as soon as the last but one has ended, when
  // the one before it has just begun.
  void set_starts_at_once() { at_once_ = true; }

  // With `two` in flight, or one.
  Outputs Run(bool two) {
    two_ = two;
    outputs_.assign(contexts_.size(), {});
    status_ = absl::OkStatus();
    num_ended_ = num_started_ = 0;
    Start(Plan(0));
    if (two_ && at_once_) StartNext();
    for (;;) {
      std::shared_ptr<const StepPlan> plan;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !due_.empty() || num_ended_ == num_started_; });
        if (due_.empty()) return outputs_;
        plan = std::move(due_.front());
        due_.pop_front();
      }
      runner_->Start(std::move(plan));
    }
  }
  const absl::Status& status() const { return status_; }
  int num_ended() const { return num_ended_; }

  void OnLayerDone(const LayerDone& done) override {
    EXPECT_EQ(done.step, first_ + num_ended_) << "a layer of a step that does not run yet";
    if (two_ && !at_once_ && done.layer == 0) StartNext();
  }
  void OnRowsDone(const RowsDone&) override {}

  void OnStepDone(StepDone done) override {
    if (on_done_) on_done_();
    EXPECT_EQ(done.step, first_ + num_ended_);
    {
      const std::lock_guard lock(mutex_);
      status_.Update(done.status);
      for (size_t r = 0; r < done.rows.size(); ++r) {
        RowResult& row = done.rows[r];
        EXPECT_TRUE(row.status.ok() && row.sampled) << row.status;
        outputs_[rows_.front()[r]].push_back(std::move(row.output));
      }
      rows_.pop_front();
      ++num_ended_;
    }
    if ((!two_ || at_once_) && done.status.ok()) StartNext();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  // The step that gives each sequence its token number `index`; of one with two in flight the token
  // before is not known.
  std::shared_ptr<StepPlan> Plan(int32_t index) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = ++step_;
    if (index == 0) first_ = step_;
    std::vector<size_t> sequences;
    for (size_t i = 0; i < contexts_.size(); ++i) {
      if (index >= num_tokens_[i]) continue;
      const std::vector<int32_t>& prompt = contexts_[i]->prompt;
      StepRow row{.sequence = {1, i + 1}, .sample = true, .sampling = contexts_[i]};
      row.num_emitted = index;
      for (const TokenOutput& output : outputs_[i]) row.emitted.push_back(output.token);
      row.tokens = prompt;
      if (index > 0) {
        row.context_len = static_cast<int32_t>(prompt.size()) + index - 1;
        row.tokens = {two_ ? 0 : outputs_[i].back().token};
        if (two_) {
          const std::vector<size_t>& before = rows_.back();
          row.follows = static_cast<int32_t>(std::ranges::find(before, i) - before.begin());
        }
      }
      const auto end = row.context_len + static_cast<int32_t>(row.tokens.size());
      const int32_t block_size = runner_->info().layout.block_size;
      for (int32_t b = 0; b * block_size < end; ++b) {
        row.block_table.push_back(b * static_cast<int32_t>(contexts_.size()) +
                                  static_cast<int32_t>(i));
      }
      plan->rows.push_back(std::move(row));
      sequences.push_back(i);
    }
    if (plan->rows.empty()) return nullptr;
    if (index == 0 || !two_) rows_.clear();
    rows_.push_back(std::move(sequences));
    ++num_started_;
    return plan;
  }

  void StartNext() {
    const std::lock_guard lock(mutex_);  // Until it is started: two threads may be here.
    std::shared_ptr<StepPlan> plan = Plan(num_started_);
    if (plan == nullptr) return;
    if (starts_within_) return runner_->Start(std::move(plan));
    due_.push_back(std::move(plan));
    changed_.notify_all();
  }
  void Start(std::shared_ptr<StepPlan> plan) { runner_->Start(std::move(plan)); }

  const Contexts contexts_;
  const std::vector<int32_t> num_tokens_;
  std::function<void()> on_done_;
  bool starts_within_ = true;  // Several ranks report under a lock.
  bool two_ = false;
  bool at_once_ = false;
  uint64_t step_ = 0;
  uint64_t first_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  Outputs outputs_;
  std::deque<std::vector<size_t>> rows_;  // Of each step in flight, whose they are.
  std::deque<std::shared_ptr<const StepPlan>> due_;
  absl::Status status_;
  int num_started_ = 0;
  int num_ended_ = 0;
  std::unique_ptr<LoadedRunner> runner_;  // Last: it calls this.
};

// Of every kind: greedy, drawn, with penalties, masks, biases and alternatives; with `digests` some
// that only the host can choose.
inline FollowUpSteps::Contexts FollowUpContexts(bool digests) {
  FollowUpSteps::Contexts contexts;
  for (int32_t i = 0; i < 6; ++i) {
    auto context = std::make_shared<SamplingContext>();
    for (int32_t t = 0; t < 3 + 9 * i; ++t) context->prompt.push_back((t * 131 + i * 7) % 200);
    SamplingParams& p = context->params;
    p.seed = static_cast<uint64_t>(i) + 1;
    p.max_tokens = 64;
    p.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    p.num_logprobs = i == 1 ? 3 : -1;
    if (i >= 2) p.repetition_penalty = 1.7f;
    if (i >= 3) p.frequency_penalty = 1.1f;
    if (i >= 4) p.presence_penalty = 0.6f;
    // Nothing but the token before, if it is known.
    if (i == 5) p.frequency_penalty = -30;
    if (i == 5) p.min_tokens = 4;
    if (i == 5) p.logit_bias = {{5, 3.0f}, {9, -2.0f}};
    p.logits_digest = digests && i == 3;
    contexts.push_back(std::move(context));
  }
  return contexts;
}

}  // namespace baton
