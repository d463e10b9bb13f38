// TransformerRunner over a device whose work ends later than it was asked for: what is reported has
// ended, and the bits are the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/results_harness.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

RunnerOptions CpuOptions() {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
          .num_blocks = 64,
          .swap_blocks = 16,
          .max_step_tokens = 128};
}

RunnerOptions Late(const LateOptions& late) {
  RunnerOptions options = CpuOptions();
  options.make_device = [late] { return std::make_unique<LateDevice>(late); };
  return options;
}

LateDevice& DeviceOf(LoadedRunner& runner) { return static_cast<LateDevice&>(runner.device()); }

std::shared_ptr<SamplingContext> LatePrompt(int32_t num_tokens, uint64_t seed = 1) {
  auto context = std::make_shared<SamplingContext>();
  Random random(seed);
  for (int32_t i = 0; i < num_tokens; ++i) {
    context->prompt.push_back(static_cast<int32_t>(random.Below(4096)));
  }
  context->params.logits_digest = true;
  context->params.num_logprobs = 2;
  return context;
}

std::vector<std::byte> BlockBytesOf(LoadedRunner& runner, const KvCache& pool, BlockId block) {
  std::vector<std::byte> all;
  const KvLayout& layout = pool.layout();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      for (int32_t head = 0; head < GroupOfLayer(layout, layer).num_kv_heads; ++head) {
        const std::byte* at = pool.base() + pool.HeadBlockOffset(layer, plane, block, head);
        const auto part = DeviceOf(runner).Read(at, HeadBlockBytes(layout, layer, plane));
        all.insert(all.end(), part.begin(), part.end());
      }
    }
  }
  return all;
}

void FillBlock(LoadedRunner& runner, const KvCache& pool, BlockId block, std::byte value) {
  const KvLayout& layout = pool.layout();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const int64_t bytes = HeadBlockBytes(layout, layer, plane) *
                            GroupOfLayer(layout, layer).num_kv_heads;
      std::byte* at = pool.base() + pool.HeadBlockOffset(layer, plane, block, 0);
      DeviceOf(runner).Fill(at, bytes, value);
    }
  }
}

// Looks at the moment of each report.
class WatchingSink : public RecordingSink {
 public:
  void OnLayerDone(const LayerDone& done) override {
    if (on_layer) on_layer(done.layer);
    RecordingSink::OnLayerDone(done);
  }
  void OnRowsDone(const RowsDone& done) override {
    if (on_rows) on_rows();
    RecordingSink::OnRowsDone(done);
  }
  void OnStepDone(StepDone done) override {
    ++num_steps;
    if (on_step) on_step(done);
    RecordingSink::OnStepDone(std::move(done));
  }

  std::function<void(int32_t)> on_layer;
  std::function<void()> on_rows;
  std::function<void(const StepDone&)> on_step;
  std::atomic<int> num_steps{0};
};

// A harness that says when StepDone came before all work had ended.
class LateHarness {
 public:
  explicit LateHarness(const LateOptions& late) : LateHarness(Late(late)) {}
  explicit LateHarness(const RunnerOptions& options) : harness_(options, &sink_) {
    sink_.on_step = [this](const StepDone&) { EXPECT_TRUE(device().idle()); };
  }
  RunnerHarness& operator*() { return harness_; }
  RunnerHarness* operator->() { return &harness_; }
  LateDevice& device() { return DeviceOf(harness_.runner()); }
  WatchingSink& sink() { return sink_; }

 private:
  WatchingSink sink_;
  RunnerHarness harness_;
};

constexpr LateOptions kAsked{.only_when_asked = true};

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

// A sequence moves out while another computes, and back before its next token; the blocks that it
// left are poisoned at once.
TEST(LateRunnerTest, SwappedKvComesBackAndItsOldBlocksAreFreeAtStepDone) {
  const auto context = LatePrompt(32);
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, context, {.num_tokens = 2});
  for (uint64_t seed = 0; seed < 12; ++seed) {
    LateHarness late(
        {.seed = seed, .only_when_asked = seed % 2 == 0, .copies_last = seed % 4 < 2});
    LoadedRunner& runner = late->runner();
    const Generated first = Generate(*late, context, {.num_tokens = 1});
    const auto block = BlockBytesOf(runner, runner.cache(), 1);
    auto out = std::make_shared<StepPlan>();
    out->step = 1000;
    out->rows.push_back({.tokens = LatePrompt(50, 9)->prompt, .block_table = {8, 9, 10, 11}});
    out->swap_out = {{0, 5}, {1, 6}};
    runner.Start(out);
    ASSERT_TRUE(late.sink().WaitForStep().status.ok());
    FillBlock(runner, runner.cache(), 0, std::byte{0xff});
    FillBlock(runner, runner.cache(), 1, std::byte{0xff});
    EXPECT_EQ(BlockBytesOf(runner, *runner.swap(), 6), block);
    auto in = std::make_shared<StepPlan>();
    in->step = 1001;
    in->rows.push_back({.tokens = {first.outputs[0].token},
                        .context_len = 32,
                        .block_table = {30, 29, 12},
                        .sample = true,
                        .sampling = context,
                        .num_emitted = 1});
    in->swap_in = {{5, 30}, {6, 29}};
    runner.Start(in);
    const StepDone done = late.sink().WaitForStep();
    ASSERT_TRUE(done.status.ok());
    EXPECT_EQ(done.rows[0].output, expected.outputs[1]) << seed;
  }
}

// Blocks that lie side by side in one pool alone are moved one by one.
TEST(LateRunnerTest, OnlyNeighboursInBothPoolsMoveAsOne) {
  LateHarness late(kAsked);
  LoadedRunner& runner = late->runner();
  const KvCache &pool = runner.cache(), &swap = *runner.swap();
  for (BlockId i = 0; i < 12; ++i) FillBlock(runner, pool, i, static_cast<std::byte>(i + 1));
  const auto expect_moved = [&](const std::vector<BlockMove>& moves) {
    for (BlockId i = 0; i < 16; ++i) FillBlock(runner, swap, i, std::byte{0xee});
    ASSERT_TRUE(late->Move(moves, {}).status.ok());
    for (const BlockMove& move : moves) {
      EXPECT_EQ(BlockBytesOf(runner, swap, move.destination),
                BlockBytesOf(runner, pool, move.source))
          << move.source << " to " << move.destination;
    }
  };
  expect_moved({{0, 3}, {2, 4}, {4, 5}, {9, 6}});   // Destinations.
  expect_moved({{4, 1}, {5, 3}, {6, 5}, {7, 9}});   // Sources.
  expect_moved({{6, 4}, {5, 3}, {4, 2}});           // Backwards.
  expect_moved({{1, 8}, {2, 9}, {8, 10}, {9, 11}});  // Two runs.
}

// More pieces than a list of them holds: none is written over while copies read it.
TEST(LateRunnerTest, MoreMovesThanAListHoldsAllArrive) {
  constexpr BlockId kBlocks = 5600;  // None of which has a neighbour: 67,200 pieces.
  RunnerOptions options = Late(kAsked);
  options.block_size = 1;
  options.num_blocks = options.swap_blocks = kBlocks;
  RunnerHarness harness(options);
  KvCache& swap = *harness.runner().swap();
  const int64_t bytes = BlockBytes(swap.layout()) * kBlocks;
  Random random(5);
  for (int64_t at = 0; at < bytes; at += 8) {
    const uint64_t value = random.Next();
    std::memcpy(swap.base() + at, &value, sizeof(value));
  }
  const std::vector<std::byte> before(swap.base(), swap.base() + bytes);
  std::vector<BlockMove> in, out;
  for (BlockId i = 0; i < kBlocks; ++i) {
    in.push_back({i, kBlocks - 1 - i});
    out.push_back({i, i});
  }
  ASSERT_TRUE(harness.Move({}, in).status.ok());
  std::fill_n(swap.base(), bytes, std::byte{0});
  ASSERT_TRUE(harness.Move(out, {}).status.ok());
  int64_t num_wrong = 0;
  for (BlockId i = 0; i < kBlocks; ++i) {
    for (int32_t layer = 0; layer < NumLayers(swap.layout()); ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        const int64_t size = HeadBlockBytes(swap.layout(), layer, plane) *
                             GroupOfLayer(swap.layout(), layer).num_kv_heads;
        const std::byte* moved =
            swap.base() + swap.HeadBlockOffset(layer, plane, kBlocks - 1 - i, 0);
        const std::byte* from = before.data() + swap.HeadBlockOffset(layer, plane, i, 0);
        num_wrong += std::memcmp(moved, from, static_cast<size_t>(size)) != 0;
      }
    }
  }
  EXPECT_EQ(num_wrong, 0);
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
