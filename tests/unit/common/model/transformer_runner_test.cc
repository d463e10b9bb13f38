#include "common/model/transformer_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/random.h"
#include "kernels/make_device.h"
#include "tests/kernels/kernel_sets.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

std::string TinyKjv() { return std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv"; }

RunnerOptions Options() { return {.model_dir = TinyKjv(), .num_blocks = 256}; }

std::shared_ptr<SamplingContext> Prompt(int32_t num_tokens, uint64_t seed = 1) {
  auto context = std::make_shared<SamplingContext>();
  Random random(seed);
  for (int32_t i = 0; i < num_tokens; ++i) {
    context->prompt.push_back(static_cast<int32_t>(random.Below(4096)));
  }
  context->params.temperature = 0;
  context->params.logits_digest = true;
  context->params.num_logprobs = 2;
  return context;
}

std::vector<TokenOutput> Outputs(const RunnerOptions& options,
                                 std::shared_ptr<const SamplingContext> prompt,
                                 const GenerateOptions& generate) {
  RunnerHarness harness(options);
  return Generate(harness, std::move(prompt), generate).outputs;
}

// A kernel set and a compute dtype. Where the bits are the same anyway, one set stands for all.
struct Numerics {
  std::string kernels;
  DType compute = DType::kF32;
};

std::vector<Numerics> AllNumerics() {
  std::vector<Numerics> all;
  for (const std::string& name : KernelSets()) {
    if (name == "portable") continue;  // Slow; its bits are compared with theirs below.
    all.push_back({name, DType::kF32});
    all.push_back({name, DType::kBF16});
  }
  if (all.empty()) all.push_back({"portable", DType::kF32});
  return all;
}

// Prefill crosses the boundary of a partial state of attention at 512 keys, in some chunks midway.
class BitIdentityTest : public testing::TestWithParam<Numerics> {
 protected:
  BitIdentityTest() : options_(Options()) {
    options_.kernels = GetParam().kernels;
    options_.compute_dtype = GetParam().compute;
    expected_ = Outputs(options_, prompt_, {.chunk_tokens = 2048, .num_tokens = 12});
  }

  RunnerOptions options_;
  const std::shared_ptr<SamplingContext> prompt_ = Prompt(530);
  std::vector<TokenOutput> expected_;
};

TEST_P(BitIdentityTest, ChunksDoNotChangeLogits) {
  for (const int32_t chunk : {17, 100, 128}) {
    EXPECT_EQ(Outputs(options_, prompt_, {.chunk_tokens = chunk, .num_tokens = 12}), expected_)
        << chunk;
  }
}

TEST_P(BitIdentityTest, BlockSizeAndPlaceOfBlocksDoNotChangeLogits) {
  for (const int32_t block_size : {1, 8, 32, 64}) {
    RunnerOptions options = options_;
    options.block_size = block_size;
    options.num_blocks = 2048;
    EXPECT_EQ(Outputs(options, prompt_, {.num_tokens = 12, .first_block = 5, .block_stride = 3}),
              expected_)
        << block_size;
  }
}

TEST_P(BitIdentityTest, ThreadsDoNotChangeLogits) {
  for (const int32_t threads : {2, 3}) {
    RunnerOptions options = options_;
    options.num_threads = threads;
    EXPECT_EQ(Outputs(options, prompt_, {.num_tokens = 12}), expected_) << threads;
  }
}

TEST_P(BitIdentityTest, RecomputeAfterPreemptionDoesNotChangeLogits) {
  // What was emitted becomes part of what is prefilled; the draw is the same.
  auto resumed = std::make_shared<SamplingContext>(*prompt_);
  for (int i = 0; i < 6; ++i) resumed->prompt.push_back(expected_[i].token);
  const std::vector<TokenOutput> tail =
      Outputs(options_, resumed, {.chunk_tokens = 200, .num_tokens = 6});
  EXPECT_EQ(tail, std::vector<TokenOutput>(expected_.begin() + 6, expected_.end()));
}

TEST_P(BitIdentityTest, NeighboursInTheBatchDoNotChangeLogits) {
  RunnerHarness harness(options_);
  const auto other = Prompt(90, 2);
  std::vector<int32_t> tokens = prompt_->prompt;
  std::vector<int32_t> more = other->prompt;
  int32_t computed = 0;
  // The other sequence prefills in pieces of seven beside every step of this one.
  int32_t other_computed = 0;
  for (int32_t produced = 0; produced < 12; ++produced) {
    const auto known = static_cast<int32_t>(tokens.size());
    const int32_t end = std::min<int32_t>(other_computed + 7, static_cast<int32_t>(more.size()));
    StepDone done = harness.Step({{.tokens = {more.begin() + other_computed, more.begin() + end},
                                   .context_len = other_computed,
                                   .block_table = harness.Blocks(end, 100)},
                                  {.tokens = {tokens.begin() + computed, tokens.end()},
                                   .context_len = computed,
                                   .block_table = harness.Blocks(known),
                                   .sample = true,
                                   .sampling = prompt_,
                                   .num_emitted = produced}});
    ASSERT_TRUE(done.status.ok());
    EXPECT_FALSE(done.rows[0].sampled);
    EXPECT_EQ(done.rows[1].output, expected_[produced]);
    other_computed = end;
    computed = known;
    tokens.push_back(done.rows[1].output.token);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, BitIdentityTest, testing::ValuesIn(AllNumerics()),
                         [](const auto& info) {
                           return info.param.kernels + "_" +
                                  std::string(ToString(info.param.compute));
                         });

TEST(TransformerRunnerTest, KernelSetsOfOneNumericsGiveTheSameLogits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    RunnerOptions options = Options();
    options.compute_dtype = dtype;
    options.kernels = "portable";
    const std::vector<TokenOutput> expected = Outputs(options, Prompt(40), {.num_tokens = 4});
    for (const std::string& name : KernelSets()) {
      const bool same = (*MakeCpuKernels({.kernels = name}))->numerics(dtype) ==
                        (*MakeCpuKernels({.kernels = "portable"}))->numerics(dtype);
      options.kernels = name;
      const std::vector<TokenOutput> outputs = Outputs(options, Prompt(40), {.num_tokens = 4});
      EXPECT_EQ(outputs == expected, same) << name << " " << ToString(dtype);
    }
  }
}

TEST(TransformerRunnerTest, ChunksDoNotChangeLogitsWhenKvIsRounded) {
  for (const DType kv : {DType::kBF16, DType::kF16}) {
    RunnerOptions options = Options();
    options.compute_dtype = DType::kBF16;
    options.kv_dtype = kv;
    const std::vector<TokenOutput> expected = Outputs(options, Prompt(70), {.num_tokens = 4});
    EXPECT_EQ(Outputs(options, Prompt(70), {.chunk_tokens = 9, .num_tokens = 4}), expected)
        << ToString(kv);
  }
}

// A model whose queries see 16 tokens, and a prompt and answer many times that long.
TEST(TransformerRunnerTest, ChunksBlocksAndPassedBlocksDoNotChangeAWindowedModelsLogits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    RunnerOptions options{
        .model_dir = std::string(BATON_SOURCE_DIR) + "/tests/golden/models/mistral-window",
        .compute_dtype = compute,
        .num_blocks = 256};
    const auto prompt = Prompt(150);
    for (int32_t& token : prompt->prompt) token %= 128;
    const std::vector<TokenOutput> expected =
        Outputs(options, prompt, {.num_tokens = 60, .drop_passed = false});
    for (const int32_t block_size : {1, 8, 256}) {
      for (const int32_t chunk : {1, 16, 2048}) {
        options.block_size = block_size;
        EXPECT_EQ(Outputs(options, prompt, {.chunk_tokens = chunk, .num_tokens = 60}), expected)
            << ToString(compute) << ", blocks of " << block_size << ", chunks of " << chunk;
      }
    }
    // What was emitted becomes part of what is prefilled.
    auto resumed = std::make_shared<SamplingContext>(*prompt);
    for (int i = 0; i < 40; ++i) resumed->prompt.push_back(expected[i].token);
    EXPECT_EQ(Outputs(options, resumed, {.chunk_tokens = 50, .num_tokens = 20}),
              std::vector<TokenOutput>(expected.begin() + 40, expected.end()));
  }
}

TEST(TransformerRunnerTest, SequencePrefilledElsewhereContinuesFromItsCopiedBlocks) {
  const auto prompt = Prompt(45);
  const std::vector<TokenOutput> expected = Outputs(Options(), prompt, {.num_tokens = 5});
  RunnerHarness from(Options());
  const Generated first = Generate(from, prompt, {.num_tokens = 1});
  RunnerHarness to(Options());
  const KvLayout& layout = to.runner().info().layout;
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      for (BlockId block = 0; block < 3; ++block) {
        for (int32_t head = 0; head < layout.groups[0].num_kv_heads; ++head) {
          const auto source = from.runner().cache().HeadBlock(layer, plane, block, head);
          const auto target = to.runner().cache().HeadBlock(layer, plane, 200 + block, head);
          std::copy(source.begin(), source.end(), target.begin());
        }
      }
    }
  }
  std::vector<BlockId> blocks = to.Blocks(64, 200);
  int32_t token = first.outputs[0].token;
  for (int32_t i = 1; i < 5; ++i) {
    StepDone done = to.Step({{.tokens = {token},
                              .context_len = 45 + i - 1,
                              .block_table = blocks,
                              .sample = true,
                              .sampling = prompt,
                              .num_emitted = i}});
    EXPECT_EQ(done.rows[0].output, expected[i]);
    token = done.rows[0].output.token;
  }
}

// Looks into the cache at the moment a layer is reported.
class PeekingSink : public RunnerSink {
 public:
  void OnLayerDone(const LayerDone& done) override {
    layers.push_back(done.layer);
    for (int32_t layer = 0; layer < 6; ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        EXPECT_EQ(NumWritten(layer, plane), layer <= done.layer ? 4 * 32 : 0)
            << "layer " << layer << " when " << done.layer << " was reported";
      }
    }
  }
  void OnRowsDone(const RowsDone&) override {}
  void OnStepDone(StepDone) override {
    finished_.store(true);
    finished_.notify_one();
  }
  void WaitUntilFinished() { finished_.wait(false); }

  // Elements of block 1, head 1 that are not the NaN they were.
  int64_t NumWritten(int32_t layer, KvPlane plane) const {
    const auto bytes = runner->cache().HeadBlock(layer, plane, 1, 1);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return std::count_if(values.begin(), values.end(), [](float x) { return !std::isnan(x); });
  }

  LoadedRunner* runner = nullptr;
  std::vector<int32_t> layers;

 private:
  std::atomic<bool> finished_{false};
};

TEST(TransformerRunnerTest, SwappedOutKvComesBackBitByBitToOtherBlocks) {
  RunnerOptions options = Options();
  options.swap_blocks = 4;
  RunnerHarness harness(options);
  KvCache& cache = harness.runner().cache();
  const auto bytes_of = [&](BlockId block) {
    std::vector<std::byte> all;
    for (int32_t layer = 0; layer < NumLayers(cache.layout()); ++layer) {
      for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        for (int32_t head = 0; head < GroupOfLayer(cache.layout(), layer).num_kv_heads; ++head) {
          const auto span = cache.HeadBlock(layer, plane, block, head);
          all.insert(all.end(), span.begin(), span.end());
        }
      }
    }
    return all;
  };
  auto context = std::make_shared<SamplingContext>();
  for (int i = 0; i < 2 * options.block_size; ++i) context->prompt.push_back(i + 3);
  Generate(harness, context, {.num_tokens = 1});
  const auto first = bytes_of(0);
  const auto second = bytes_of(1);
  ASSERT_NE(first, second);
  ASSERT_TRUE(harness.Move({{0, 3}, {1, 2}}, {}).status.ok());
  ASSERT_TRUE(harness.Move({}, {{2, 5}, {3, 6}}).status.ok());
  EXPECT_EQ(bytes_of(6), first);
  EXPECT_EQ(bytes_of(5), second);
}

TEST(TransformerRunnerTest, LayersAreReportedInOrderOnceTheirKvIsWritten) {
  PeekingSink sink;
  auto runner = LoadedRunner::Create(Options(), &sink);
  ASSERT_TRUE(runner.ok());
  sink.runner = runner->get();
  const KvLayout& layout = (*runner)->info().layout;
  for (int32_t layer = 0; layer < 6; ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const auto bytes = (*runner)->cache().HeadBlock(layer, plane, 1, 1);
      std::memset(bytes.data(), 0xFF, HeadBlockBytes(layout, layer, plane));
    }
  }
  auto plan = std::make_shared<StepPlan>();
  plan->rows.push_back({.tokens = Prompt(20)->prompt, .block_table = {0, 1}});
  (*runner)->Start(plan);
  sink.WaitUntilFinished();
  EXPECT_THAT(sink.layers, testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(TransformerRunnerTest, PromptLogprobsDoNotDependOnChunksAndCoverAllButTheFirstToken) {
  auto prompt = Prompt(75);
  prompt->params.num_prompt_logprobs = 1;
  RunnerHarness harness(Options());
  const Generated whole = Generate(harness, prompt, {.num_tokens = 1});
  const Generated pieces = Generate(harness, prompt, {.chunk_tokens = 11, .num_tokens = 1});
  ASSERT_EQ(whole.prompt_logprobs.size(), 74u);
  EXPECT_EQ(whole.prompt_logprobs, pieces.prompt_logprobs);
  for (int32_t i = 0; i < 74; ++i) {
    EXPECT_EQ(whole.prompt_logprobs[i].position, i + 1);
    EXPECT_EQ(whole.prompt_logprobs[i].token, prompt->prompt[i + 1]);
  }
}

// Scores a prompt of so many tokens, and samples beside it.
std::vector<StepRow> ScoringRows(RunnerHarness& harness, int32_t num_tokens) {
  auto prompt = Prompt(num_tokens);
  prompt->params.num_prompt_logprobs = 1;
  return {{.tokens = prompt->prompt,
           .block_table = harness.Blocks(num_tokens),
           .sample = true,
           .sampling = prompt}};
}

TEST(TransformerRunnerTest, EachThirtyTwoRowsOfLogitsAreMarkedAfterTheLayers) {
  for (const int threads : {1, 3}) {
    RunnerOptions options = Options();
    options.num_threads = threads;
    RunnerHarness harness(options);
    for (const int32_t rows : {1, 31, 32, 33, 64, 200}) {
      ASSERT_TRUE(harness.Step(ScoringRows(harness, rows)).status.ok());
      EXPECT_EQ(harness.sink().TakeLayers().size(), 6u);
      const auto marks = harness.sink().TakeMarks();
      ASSERT_EQ(marks.size(), rows / 32u) << rows;
      for (size_t i = 0; i < marks.size(); ++i) {
        EXPECT_EQ(marks[i].rows.rows, static_cast<int32_t>(i + 1) * 32);
        EXPECT_EQ(marks[i].layers, 6u) << "after all layers";
      }
    }
  }
}

TEST(TransformerRunnerTest, AStepLargerThanTheRoomMadeAtLoadIsOurBug) {
  RunnerOptions options = Options();
  options.max_step_tokens = 60;
  EXPECT_EQ(Outputs(options, Prompt(60), {.num_tokens = 2}),
            Outputs(Options(), Prompt(60), {.num_tokens = 2}));
  EXPECT_DEATH(Outputs(options, Prompt(61), {.num_tokens = 2}), "max_tokens");
}

// Starts the next step from within OnStepDone, as a node on the compute thread could.
class RestartingSink : public RunnerSink {
 public:
  void OnLayerDone(const LayerDone&) override { ++num_layers; }
  void OnRowsDone(const RowsDone&) override {}
  void OnStepDone(StepDone done) override {
    if (done.step == 5) {
      finished_.store(true);
      finished_.notify_one();
      return;
    }
    auto plan = std::make_shared<StepPlan>();
    plan->step = done.step + 1;
    plan->rows.push_back({.tokens = {1}, .block_table = {0}});
    runner->Start(std::move(plan));
  }
  void WaitUntilFinished() { finished_.wait(false); }

  LoadedRunner* runner = nullptr;
  int num_layers = 0;

 private:
  std::atomic<bool> finished_{false};
};

TEST(TransformerRunnerTest, NextStepMayBeStartedFromStepDone) {
  RestartingSink sink;
  auto runner = LoadedRunner::Create(Options(), &sink);
  ASSERT_TRUE(runner.ok());
  sink.runner = runner->get();
  sink.OnStepDone({.step = 0});
  sink.WaitUntilFinished();
  EXPECT_EQ(sink.num_layers, 30);
}

TEST(TransformerRunnerTest, DestructionEndsTheStepInProgressFirst) {
  RecordingSink sink;
  {
    auto runner = LoadedRunner::Create(Options(), &sink);
    ASSERT_TRUE(runner.ok());
    auto plan = std::make_shared<StepPlan>();
    plan->step = 9;
    plan->rows.push_back(
        {.tokens = std::vector<int32_t>(300, 5), .block_table = std::vector<BlockId>(19, 3)});
    (*runner)->Start(plan);
  }
  EXPECT_EQ(sink.WaitForStep().step, 9u);
}

}  // namespace
}  // namespace baton
