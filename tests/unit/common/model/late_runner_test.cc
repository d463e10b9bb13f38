// TransformerRunner over a device whose work ends later than it was asked for: what is reported has
// ended, and the bits are the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/base/clock.h"
#include "tests/unit/common/model/late_harness.h"
#include "tests/unit/common/model/results_harness.h"

namespace baton {
namespace {

TEST(LateRunnerTest, ChunksBatchesAndOrdersOfTheLanesGiveTheCpusBits) {
  const auto prompt = LatePrompt(70);
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, prompt, {.chunk_tokens = 100, .num_tokens = 4});
  for (uint64_t seed = 0; seed < 40; ++seed) {
    LateHarness late({.seed = seed, .only_when_asked = seed % 2 == 0});
    const int32_t chunk = seed % 3 == 0 ? 100 : 33;
    const Generated got = Generate(*late, prompt, {.chunk_tokens = chunk, .num_tokens = 4});
    EXPECT_EQ(got.outputs, expected.outputs) << seed;
  }
}

TEST(LateRunnerTest, WeightsHaveLandedWhenTheModelIsLoaded) {
  LateHarness late({.only_when_asked = true, .copies_last = true});
  EXPECT_TRUE(late.device().idle());
  const auto prompt = LatePrompt(20);
  RunnerHarness cpu(CpuOptions());
  EXPECT_EQ(Generate(*late, prompt, {.num_tokens = 2}).outputs,
            Generate(cpu, prompt, {.num_tokens = 2}).outputs);
}

TEST(LateRunnerTest, ScoresAndSlicesOfLogitsAreTheCpus) {
  auto prompt = LatePrompt(75);
  prompt->params.num_prompt_logprobs = 1;
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, prompt, {.chunk_tokens = 100, .num_tokens = 2});
  for (const int64_t slice : {8, 32, 128}) {
    LateHarness late({.seed = 3, .logit_rows = slice});
    const Generated got = Generate(*late, prompt, {.chunk_tokens = 60, .num_tokens = 2});
    EXPECT_EQ(got.outputs, expected.outputs) << slice;
    EXPECT_EQ(got.prompt_logprobs, expected.prompt_logprobs) << slice;
  }
}

// Of every way to choose a token one sequence: their prompts in one step, then steps that decode.
std::vector<RowResult> BatchOf(RunnerHarness& harness) {
  std::vector<std::shared_ptr<SamplingContext>> contexts;
  for (uint64_t i = 0; i < 7; ++i) {
    contexts.push_back(LatePrompt(9 + static_cast<int32_t>(i), 50 + i));
    SamplingParams& params = contexts.back()->params;
    params = {.seed = i, .num_logprobs = static_cast<int32_t>(i) - 1};
    if (i == 1) params.temperature = 0;
    if (i == 2) params.repetition_penalty = 1.5f;
    if (i == 3) params.frequency_penalty = params.presence_penalty = 2;
    if (i == 4) params.logit_bias = {{17, 40}, {18, 39.5f}};
    if (i == 5) params.min_tokens = 9, params.stop_token_ids = {5, 6};
    if (i == 6) params.top_p = 0.7f, params.top_k = 50, params.num_prompt_logprobs = 2;
    if (i == 0) params.logits_digest = true;
  }
  std::vector<std::vector<int32_t>> emitted(contexts.size());
  std::vector<RowResult> all;
  for (int32_t step = 0; step < 4; ++step) {
    std::vector<StepRow> rows;
    for (size_t i = 0; i < contexts.size(); ++i) {
      const std::vector<int32_t>& prompt = contexts[i]->prompt;
      const auto known = static_cast<int32_t>(prompt.size() + emitted[i].size());
      rows.push_back({.sequence = {.counter = i + 1},
                      .tokens = step == 0 ? prompt : std::vector{emitted[i].back()},
                      .context_len = step == 0 ? 0 : known - 1,
                      .block_table = harness.Blocks(known, static_cast<BlockId>(4 * i)),
                      .sample = true,
                      .sampling = contexts[i],
                      .emitted = emitted[i],
                      .num_emitted = step});
    }
    StepDone done = harness.Step(std::move(rows));
    BATON_CHECK(done.status.ok());
    for (size_t i = 0; i < contexts.size(); ++i) {
      emitted[i].push_back(done.rows[i].output.token);
      all.push_back(std::move(done.rows[i]));
    }
  }
  return all;
}

TEST(LateRunnerTest, ABatchWhoseTokensTheDeviceChoosesIsTheCpus) {
  RunnerHarness cpu(CpuOptions());
  const std::vector<RowResult> expected = BatchOf(cpu);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    LateHarness late({.seed = seed,
                      .only_when_asked = seed % 2 == 0,
                      .logit_rows = seed % 3 == 0 ? 4 : 32});
    EXPECT_EQ(Difference(BatchOf(*late), expected), "") << seed;
  }
}

// What lies between the rows is poison.
TEST(LateRunnerTest, RowsMayLieAtTheDevicesAlignment) {
  const auto prompt = LatePrompt(120);  // Nearly the largest step.
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, prompt, {.num_tokens = 3});
  LateHarness late({.seed = 1, .only_when_asked = true, .row_alignment = 320});
  EXPECT_EQ(Generate(*late, prompt, {.num_tokens = 3}).outputs, expected.outputs);
}

TEST(LateRunnerTest, StepDoneComesWhenNothingTouchesTheBlocksAnyMore) {
  LateHarness late(kAsked);
  // Without logits nobody waits for the kernels but StepDone.
  const auto context = LatePrompt(40);
  ASSERT_TRUE(
      late->Step({{.tokens = context->prompt, .block_table = late->Blocks(40)}}).status.ok());
  // Nor for moves beside no rows.
  ASSERT_TRUE(late->Move({{0, 3}, {1, 4}}, {}).status.ok());
  ASSERT_TRUE(late->Move({}, {{3, 20}}).status.ok());
}

TEST(LateRunnerTest, ALayerIsReportedWhenItsKvIsInTheCache) {
  LateHarness late(kAsked);
  const auto context = LatePrompt(20);
  LoadedRunner& runner = late->runner();
  const KvCache& pool = runner.cache();
  std::vector<std::vector<std::byte>> at_report;
  const auto layer_bytes = [&](int32_t layer) {
    std::vector<std::byte> all;
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const std::byte* at = pool.base() + pool.HeadBlockOffset(layer, plane, 0, 0);
      const auto part = late.device().Read(at, HeadBlockBytes(pool.layout(), layer, plane));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  late.sink().on_layer = [&](int32_t layer) { at_report.push_back(layer_bytes(layer)); };
  ASSERT_TRUE(late->Step({{.tokens = context->prompt, .block_table = {0, 1}}}).status.ok());
  ASSERT_EQ(at_report.size(), 6u);
  for (int32_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(at_report[layer], layer_bytes(layer)) << layer;
    EXPECT_NE(at_report[layer], std::vector<std::byte>(at_report[layer].size(), std::byte{0xff}));
  }
}

// Not only when all of the step has ended: a handoff pushes layers meanwhile.
TEST(LateRunnerTest, LayersAreReportedBeforeTheLastLogitsAreRead) {
  LateHarness late(kAsked);
  const auto context = LatePrompt(20);
  const int64_t before = late.device().num_works();
  int64_t first = 0;
  late.sink().on_layer = [&](int32_t layer) {
    if (layer == 0) first = late.device().num_works() - before;
  };
  ASSERT_TRUE(late->Step({{.tokens = context->prompt,
                           .block_table = {0, 1},
                           .sample = true,
                           .sampling = context}})
                  .status.ok());
  // Of six layers it has done one.
  EXPECT_LT(first, (late.device().num_works() - before) / 2);
}

// What the device does after the last call counts for the device.
TEST(LateRunnerTest, TheHostsPartOfAStepEndsBeforeTheDevices) {
  LateHarness late(kAsked);
  Time last_layer{};
  late.sink().on_layer = [&](int32_t layer) {
    if (layer != 5) return;
    last_layer = SteadyNow();
    while (SteadyNow() - last_layer < std::chrono::milliseconds(100)) {
    }
  };
  const auto context = LatePrompt(20);
  const Time begin = SteadyNow();
  const StepDone done = late->Step({{.tokens = context->prompt,
                                     .block_table = {0, 1},
                                     .sample = true,
                                     .sampling = context}});
  EXPECT_GT(done.host, Duration::zero());
  EXPECT_LE(begin + done.host, last_layer);
  EXPECT_EQ(late->Move({{0, 3}}, {}).host, Duration::zero());
}

// Each step begins when the one before has ended, on other tokens and the same memory.
TEST(LateRunnerTest, NoStepReadsWhatTheNextOneBrings) {
  std::vector<std::vector<TokenOutput>> all;
  for (int seed = -1; seed < 10; ++seed) {
    const uint64_t s = static_cast<uint64_t>(seed);
    RunnerHarness harness(seed < 0 ? CpuOptions()
                                   : Late({.seed = s, .only_when_asked = seed % 2 == 0}));
    std::vector<TokenOutput> outputs;
    for (int32_t step = 0; step < 20; ++step) {
      const auto prompt = LatePrompt(1 + step * 7 % 30, 100 + step);
      outputs.push_back(Generate(harness, prompt, {.num_tokens = 1, .first_block = step})
                            .outputs[0]);
    }
    all.push_back(std::move(outputs));
    EXPECT_EQ(all.back(), all.front()) << seed;
  }
}

TEST(LateRunnerTest, AnOperatorThatFailsEndsTheStepWhenWhatWasEnqueuedHasEnded) {
  const auto context = LatePrompt(20);
  context->params.logits_digest = false;
  const auto scored = std::make_shared<SamplingContext>(*context);
  scored->params.num_prompt_logprobs = 0;
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, context, {.num_tokens = 1});
  const std::vector<std::string> once = {"Embedding", "SelectRows", "Sample", "Score"};
  for (const char* op : {"Embedding", "RmsNorm", "Gemm", "RotaryTable", "Rope", "ReshapeAndCache",
                         "VarlenAttention", "ActivationAndMul", "SelectRows", "Sample", "Score"}) {
    LateHarness late(kAsked);
    late.device().FailNext(op, std::ranges::find(once, op) != once.end() ? 0 : 1);
    const StepDone done =
        late->Step({{.tokens = context->prompt,
                     .block_table = {0, 1},
                     .sample = true,
                     .sampling = std::string(op) == "Score" ? scored : context}});
    EXPECT_EQ(done.status.code(), absl::StatusCode::kInvalidArgument) << op;
    EXPECT_TRUE(done.rows.empty());
    EXPECT_EQ(Generate(*late, context, {.num_tokens = 1}).outputs, expected.outputs) << op;
  }
}

TEST(LateRunnerTest, AStopAmidSlicesAndTheDestructorLeaveNothingBehind) {
  auto prompt = LatePrompt(100);
  prompt->params.num_prompt_logprobs = 1;
  {
    LateHarness late(kAsked);
    late.sink().on_rows = [&] { late->runner().Stop(); };
    const StepDone done = late->Step(
        {{.tokens = prompt->prompt, .block_table = late->Blocks(100), .sampling = prompt}});
    EXPECT_EQ(done.status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(late.sink().TakeMarks().size(), 1u);
  }
  WatchingSink sink;
  {
    RunnerHarness harness(Late(kAsked), &sink);
    sink.on_step = [&](const StepDone&) { EXPECT_TRUE(DeviceOf(harness.runner()).idle()); };
    auto plan = std::make_shared<StepPlan>();
    plan->step = 9;
    plan->rows.push_back({.tokens = prompt->prompt, .block_table = harness.Blocks(100)});
    harness.runner().Start(plan);
  }
  EXPECT_EQ(sink.WaitForStep().step, 9u);
}

TEST(LateRunnerTest, NothingIsAllocatedAfterTheLoad) {
  LateHarness late({.seed = 7});
  const int64_t before = late.device().num_allocations();
  auto prompt = LatePrompt(75);
  prompt->params.num_prompt_logprobs = 1;
  Generate(*late, prompt, {.chunk_tokens = 33, .num_tokens = 5});
  ASSERT_TRUE(late->Move({{0, 3}}, {}).status.ok());
  EXPECT_EQ(late.device().num_allocations(), before);
}

// Runs a step on a device that `spoil` has been at; how often it was reported lost, and StepDone.
std::pair<int, int> LostAndDone(const std::function<void(LateDevice&)>& spoil) {
  WatchingSink sink;
  std::atomic<int> lost{0};
  {
    LateDevice* device = nullptr;
    auto runner = *LoadedRunner::Create(Late(kAsked), &sink, [&](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      device->Lose();
      ++lost;
      lost.notify_all();
    });
    device = &DeviceOf(*runner);
    device->SetLimit(std::chrono::milliseconds(300));  // A load may take longer.
    spoil(*device);
    const auto context = LatePrompt(40);
    auto plan = std::make_shared<StepPlan>();
    plan->rows = {
        {.tokens = context->prompt, .block_table = {0, 1, 2}, .sample = true, .sampling = context}};
    plan->swap_out = {{7, 1}};
    plan->swap_in = {{2, 8}};
    runner->Start(plan);
    lost.wait(0);
  }
  return {lost.load(), sink.num_steps.load()};
}

TEST(LateRunnerTest, ALostDeviceIsToldOnceAndNoStepDoneFollows) {
  for (const int works : {0, 1, 2, 3, 5, 20, 40, 55}) {
    EXPECT_EQ(LostAndDone([&](LateDevice& device) { device.LoseAfter(works); }),
              (std::pair<int, int>{1, 0}))
        << works;
  }
}

TEST(LateRunnerTest, ADeviceThatHangsIsLostAfterTheLimit) {
  for (const int works : {0, 3, 40}) {
    EXPECT_EQ(LostAndDone([&](LateDevice& device) { device.HangAfter(works); }),
              (std::pair<int, int>{1, 0}))
        << works;
  }
}

// The waits of a load are as long as those of a step.
TEST(LateRunnerTest, ADeviceThatHangsWhileTheModelLoadsIsAnErrorAfterTheLimit) {
  for (const int works : {0, 1, 7, 20}) {
    WatchingSink sink;
    LateOptions late = kAsked;
    late.limit = std::chrono::milliseconds(100);
    RunnerOptions options = Late(late);
    options.make_device = [late, works] {
      auto device = std::make_unique<LateDevice>(late);
      device->HangAfter(works);
      return device;
    };
    EXPECT_EQ(LoadedRunner::Create(options, &sink).status(),
              absl::UnavailableError("late has not ended its work within 100 ms"))
        << works;
  }
}

}  // namespace
}  // namespace baton
