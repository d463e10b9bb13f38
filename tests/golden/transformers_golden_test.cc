// TransformerRunner against transformers: the shipped model and random models of odd shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/common/model/loaded_runner.h"
#include "tests/golden/golden_file.h"

namespace baton {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 100;
constexpr int32_t kChunkTokens = 128;

// Of the reference mode; 1.4e-5 was the most seen.
constexpr float kLogprobTolerance = 2e-4f;
// Below this margin of the reference's two best logits either token is right.
constexpr float kTieMargin = 0.02f;

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

class ModelUnderTest {
 public:
  ModelUnderTest(const std::string& model_dir, DType compute) {
    auto runner = LoadedRunner::Create({.model_dir = model_dir,
                                          .compute_dtype = compute,
                                          .block_size = kBlockSize,
                                          .num_blocks = kNumBlocks},
                                         &sink_);
    EXPECT_TRUE(runner.ok()) << runner.status();
    if (runner.ok()) runner_ = *std::move(runner);
  }
  bool ok() const { return runner_ != nullptr; }

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
  void Step(std::vector<int32_t> tokens, int32_t context_len, bool sample, Answer& answer) {
    StepRow row{.sequence = {.router = 1, .counter = 1},
                .tokens = std::move(tokens),
                .context_len = context_len,
                .sample = sample,
                .sampling = sampling_};
    row.num_emitted = static_cast<int32_t>(answer.outputs.size());
    const int32_t total = context_len + static_cast<int32_t>(row.tokens.size());
    // Any order of blocks must do.
    for (BlockId i = 0; i * kBlockSize < total; ++i) row.block_table.push_back(kNumBlocks - 1 - i);
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

class TransformersGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  bool shipped() const { return GetParam() == "tiny-kjv"; }
  GoldenFile Golden() const {
    return ReadGoldenFile(shipped() ? "tiny-kjv.json" : "models/" + GetParam() + "/golden.json");
  }
  std::string Dir() const {
    return shipped() ? BATON_SOURCE_DIR "/deploy/models/tiny-kjv" : GoldenModelDir(GetParam());
  }
};

TEST_P(TransformersGoldenTest, FloatModeGivesTheSameTokensAndLogprobs) {
  ModelUnderTest model(Dir(), DType::kF32);
  ASSERT_TRUE(model.ok());
  size_t num_steps = 0;
  size_t num_compared = 0;
  for (const GoldenCase& golden : Golden().cases) {
    SCOPED_TRACE(golden.name);
    const Answer answer = model.Run(golden, golden.greedy_ids.size());
    ASSERT_EQ(answer.prompt_logprobs.size(), golden.prompt_logprobs.size());
    for (size_t i = 0; i < golden.prompt_logprobs.size(); ++i) {
      EXPECT_NEAR(answer.prompt_logprobs[i], golden.prompt_logprobs[i], kLogprobTolerance) << i;
    }
    ASSERT_EQ(answer.outputs.size(), golden.greedy_ids.size());
    for (size_t i = 0; i < golden.greedy_ids.size(); ++i) {
      ++num_steps;
      if (golden.greedy_margins[i] < kTieMargin) continue;
      ++num_compared;
      EXPECT_EQ(answer.outputs[i].token, golden.greedy_ids[i]) << i;
      EXPECT_NEAR(answer.outputs[i].logprob, golden.greedy_logprobs[i], kLogprobTolerance) << i;
      EXPECT_EQ(answer.outputs[i].position, static_cast<int32_t>(golden.prompt_ids.size() + i));
    }
  }
  EXPECT_GE(num_compared * 10, num_steps * 9);
}

TEST_P(TransformersGoldenTest, Bf16ModeIsAtMostTwiceAsFarOffAsTransformersOwn) {
  ModelUnderTest model(Dir(), DType::kBF16);
  ASSERT_TRUE(model.ok());
  const GoldenFile file = Golden();
  double sum = 0;
  size_t count = 0;
  for (const GoldenCase& golden : file.cases) {
    const Answer answer = model.Run(golden, 0);
    ASSERT_EQ(answer.prompt_logprobs.size(), golden.prompt_logprobs.size());
    for (size_t i = 0; i < golden.prompt_logprobs.size(); ++i) {
      const double difference = answer.prompt_logprobs[i] - golden.prompt_logprobs[i];
      sum += difference * difference;
      ++count;
    }
  }
  ASSERT_GT(count, 0u);
  const double rms = std::sqrt(sum / static_cast<double>(count));
  EXPECT_LE(rms, 2 * file.bf16_rms);
  EXPECT_GT(rms, 0) << "nothing was rounded";
}

std::vector<std::string> AllModels() {
  std::vector<std::string> names = GoldenModels();
  names.push_back("tiny-kjv");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, TransformersGoldenTest, ::testing::ValuesIn(AllModels()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace baton
