// Decode steps as graphs, over a device whose work runs later: the bits are those without, and
// nothing but the rows of a step is written.
#include "common/model/step_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/decode_steps.h"

namespace baton {
namespace {

using testing::ElementsAre;

constexpr int32_t kLongPast = 3 * 512 + 7;

RunnerOptions LateGraphOptions(const LateOptions& late) {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
          .max_step_tokens = 64,
          .make_device = [late] { return std::make_unique<LateDevice>(late); }};
}

LateDevice& LateDeviceOf(DecodeSteps& steps) {
  return static_cast<LateDevice&>(steps.harness().runner().device());
}

// Short and long pasts, an edge of a block here and there.
std::vector<int32_t> Lengths(int32_t rows, int32_t salt) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < rows; ++i) lengths.push_back((i * 37 + salt * 16) % 130);
  return lengths;
}

TEST(StepGraphsTest, SizesReachToTheFirstThatHoldsTheLargestStep) {
  EXPECT_THAT(StepGraphs::SizesFor(1), ElementsAre(1));
  EXPECT_THAT(StepGraphs::SizesFor(5), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(StepGraphs::SizesFor(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(StepGraphs::SizesFor(4096),
              ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128));
}

TEST(StepGraphsTest, AnyNumberOfRowsGivesTheBitsOfNoGraphAndWritesNothingElse) {
  for (const bool asked : {true, false}) {
    DecodeSteps off(LateGraphOptions({.seed = 1, .only_when_asked = asked}), 36);
    DecodeSteps on(LateGraphOptions({.seed = 2, .only_when_asked = asked, .graphs = true}), 36);
    int launches = 0;
    for (const int32_t rows : {1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 25, 32, 33, 36, 3, 1}) {
      EXPECT_EQ(on.Run(Lengths(rows, rows)), off.Run(Lengths(rows, rows))) << rows;
      EXPECT_EQ(LateDeviceOf(on).num_launches(), ++launches);
    }
    EXPECT_EQ(on.Pool(), off.Pool());
    EXPECT_EQ(LateDeviceOf(off).num_launches(), 0);
  }
}

TEST(StepGraphsTest, AnyLengthGivesTheBitsOfNoGraph) {
  DecodeSteps off(LateGraphOptions({.seed = 3}), 3);
  DecodeSteps on(LateGraphOptions({.seed = 4, .graphs = true}), 3);
  for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
           {0}, {kLongPast}, {1}, {1, kLongPast, 511}, {512, 513}, {kLongPast, 0, 2}, {1, 1, 1}}) {
    EXPECT_EQ(on.Run(lengths), off.Run(lengths)) << lengths[0] << " " << lengths.size();
  }
  EXPECT_EQ(on.Pool(), off.Pool());
}

// Where a graph would divide the work worse than a pass does.
TEST(StepGraphsTest, StepsOfLongerSequencesThanAGraphIsForAreNone) {
  DecodeSteps off(LateGraphOptions({.seed = 3}), 4);
  DecodeSteps on(LateGraphOptions({.seed = 4, .graphs = true, .longest_replay = 512}), 4);
  int launches = 0;
  for (const auto& [lengths, is_graph] : std::vector<std::pair<std::vector<int32_t>, bool>>{
           {{511}, true}, {{512}, false}, {{255, 3}, true}, {{3, 256}, false},
           {{1, 127, 2}, true}, {{1, 2, 128}, false}, {{kLongPast}, false}, {{0}, true}}) {
    EXPECT_EQ(on.Run(lengths), off.Run(lengths)) << lengths[0] << " " << lengths.size();
    launches += is_graph ? 1 : 0;
    EXPECT_EQ(LateDeviceOf(on).num_launches(), launches) << lengths[0] << " " << lengths.size();
  }
  EXPECT_EQ(on.Pool(), off.Pool());
}

// Each step begins when the one before has ended, on other rows and the same memory.
TEST(StepGraphsTest, NoLaunchReadsWhatTheNextStepBrings) {
  DecodeSteps off(LateGraphOptions({}), 5);
  std::vector<std::vector<TokenOutput>> expected;
  for (int32_t step = 0; step < 8; ++step) expected.push_back(off.Run(Lengths(1 + step % 5, step)));
  for (uint64_t seed = 0; seed < 8; ++seed) {
    DecodeSteps on(
        LateGraphOptions({.seed = seed, .only_when_asked = seed % 2 == 0, .graphs = true}), 5);
    for (int32_t step = 0; step < 8; ++step) {
      EXPECT_EQ(on.Run(Lengths(1 + step % 5, step)), expected[step]) << seed << " " << step;
    }
  }
}

TEST(StepGraphsTest, OtherStepsAreNone) {
  DecodeSteps off(LateGraphOptions({}), 130);
  DecodeSteps on(LateGraphOptions({.graphs = true}), 130);
  const auto compare = [&](std::vector<StepRow> rows) {
    const StepDone a = on.harness().Step(rows), b = off.harness().Step(std::move(rows));
    ASSERT_TRUE(a.status.ok() && b.status.ok());
    for (size_t i = 0; i < a.rows.size(); ++i) {
      EXPECT_EQ(a.rows[i].output, b.rows[i].output) << i;
      EXPECT_EQ(a.rows[i].prompt_logprobs, b.rows[i].prompt_logprobs) << i;
    }
  };
  StepRow chunk = on.Row(0, 20), silent = on.Row(1, 30), scored = on.Row(2, 40);
  chunk.tokens = {5, 6, 7};
  silent.sample = false;
  compare({chunk, on.Row(3, 9)});
  compare({silent, on.Row(3, 10)});
  compare({silent});
  EXPECT_EQ(on.Run(Lengths(129, 1)), off.Run(Lengths(129, 1)));
  // A chunk whose tokens are scored, of which logits are wanted of all.
  auto context = std::make_shared<SamplingContext>(*scored.sampling);
  context->prompt.assign(50, 3);
  context->params.num_prompt_logprobs = 1;
  scored.sampling = chunk.sampling = context;
  scored.sample = chunk.sample = false;
  compare({chunk});
  EXPECT_EQ(LateDeviceOf(on).num_launches(), 0);
  // But a row of one token that is scored is one of a graph, as a step of as many rows as it has;
  // whatever the step before has left.
  compare({scored});
  EXPECT_EQ(LateDeviceOf(on).num_launches(), 1);
  compare({silent, on.Row(3, 11)});
  EXPECT_EQ(on.Run(Lengths(128, 2)), off.Run(Lengths(128, 2)));
  EXPECT_EQ(LateDeviceOf(on).num_launches(), 2);
}

TEST(StepGraphsTest, TheOptionTurnsThemOff) {
  RunnerOptions options = LateGraphOptions({.graphs = true});
  options.graphs = false;
  DecodeSteps steps(options, 2);
  steps.Run({3, 4});
  EXPECT_EQ(LateDeviceOf(steps).num_launches(), 0);
}

// A step may have fewer tokens than the graph that holds it has rows.
TEST(StepGraphsTest, StepsOfFewTokensAreFilledUpBeyondTheirLimit) {
  RunnerOptions options = LateGraphOptions({});
  options.max_step_tokens = 5;
  DecodeSteps off(options, 5);
  options.make_device = [] { return std::make_unique<LateDevice>(LateOptions{.graphs = true}); };
  DecodeSteps on(options, 5);
  EXPECT_EQ(on.Run(Lengths(5, 1)), off.Run(Lengths(5, 1)));
  EXPECT_EQ(LateDeviceOf(on).num_launches(), 1);
}

// The pool is what is left when all else has been allocated or set aside.
TEST(StepGraphsTest, AllThatALoadTakesIsWithinTheFraction) {
  Processors processors = *MakeDevice({});
  RecordingSink sink;
  const auto blocks = [&](bool graphs, int32_t rows) {
    LateDevice device({.graphs = true});
    ModelOptions options = LateGraphOptions({}).model();
    options.memory_fraction = 0.03;
    options.max_step_rows = rows;
    options.max_step_tokens = rows;
    options.graphs = graphs;
    Device* const devices[] = {&device};
    const auto model = LoadModel(options, devices, *processors.host, &sink);
    EXPECT_TRUE(model.ok()) << model.status();
    const DeviceMemory memory = *device.Memory();
    const auto share = static_cast<int64_t>(0.03 * static_cast<double>(memory.total));
    const int64_t set_aside = graphs ? StepGraphs::kBytesOfOne * 4 : 0;
    const int64_t left = share - memory.total / 64 - set_aside - memory.taken;
    EXPECT_GE(left, 0);
    EXPECT_LT(left, BlockBytes(model->info.layout));
    return model->ranks[0].cache->num_blocks();
  };
  const int32_t with = blocks(true, 8), without = blocks(false, 8);
  EXPECT_GT(without, with);
  EXPECT_GT(without, blocks(false, 2000));  // Its metadata alone is a megabyte.
}

// Looks at the cache at each report of a layer.
class LayerSink : public RecordingSink {
 public:
  void OnLayerDone(const LayerDone& done) override {
    if (look) look(done.layer);
    RecordingSink::OnLayerDone(done);
  }
  std::function<void(int32_t)> look;
};

TEST(StepGraphsTest, LayersAreReportedWhenTheirKvIsInTheCache) {
  LayerSink sink;
  DecodeSteps steps(LateGraphOptions({.seed = 5, .only_when_asked = true, .graphs = true}), 1,
                    &sink);
  KvCache& pool = steps.harness().runner().cache();
  const auto keys_of = [&](int32_t layer) {
    const BlockId own = DecodeSteps::kSharedBlocks;
    return LateDeviceOf(steps).Read(pool.base() + pool.HeadBlockOffset(layer, KvPlane::kK, own, 0),
                                HeadBlockBytes(pool.layout(), layer, KvPlane::kK));
  };
  std::vector<std::vector<std::byte>> before, at_report;
  for (int32_t layer = 0; layer < 6; ++layer) before.push_back(keys_of(layer));
  sink.look = [&](int32_t layer) { at_report.push_back(keys_of(layer)); };
  steps.Run({19});
  sink.look = nullptr;
  const std::vector<LayerDone> layers = sink.TakeLayers();
  ASSERT_EQ(layers.size(), 6u);
  for (int32_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(layers[layer].layer, layer);
    EXPECT_EQ(at_report[layer], keys_of(layer)) << layer;
    EXPECT_NE(at_report[layer], before[layer]) << layer;
  }
}

TEST(StepGraphsTest, ALaunchThatFailsFailsItsStepAlone) {
  DecodeSteps off(LateGraphOptions({}), 2), on(LateGraphOptions({.graphs = true}), 2);
  LateDeviceOf(on).FailNext("Launch", 0);
  EXPECT_EQ(on.harness().Step({on.Row(0, 5)}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(on.Run({6, 7}), off.Run({6, 7}));
}

TEST(StepGraphsTest, ALostDeviceIsToldOnceAndNoStepDoneFollows) {
  for (const int works : {0, 1, 2, 40}) {
    RecordingSink sink;
    std::atomic<int> lost{0};
    RunnerOptions options = LateGraphOptions({.only_when_asked = true, .graphs = true});
    options.num_blocks = 8;
    options.max_step_rows = 1;
    {
      auto runner = *LoadedRunner::Create(options, &sink, [&](const absl::Status& status) {
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        ++lost;
        lost.notify_all();
      });
      static_cast<LateDevice&>(runner->device()).LoseAfter(works);
      auto plan = std::make_shared<StepPlan>();
      plan->rows.push_back({.tokens = {3},
                            .block_table = {0},
                            .sample = true,
                            .sampling = std::make_shared<SamplingContext>()});
      runner->Start(plan);
      lost.wait(0);
    }
    EXPECT_EQ(lost, 1) << works;
    EXPECT_TRUE(sink.TakeLayers().empty() && sink.TakeMarks().empty());
  }
}

// What the device says of a capture is what the load says.
TEST(StepGraphsTest, AnErrorWhileCapturingIsOneOfTheLoad) {
  RunnerOptions options = LateGraphOptions({});
  options.num_blocks = 8;
  options.max_step_rows = 2;
  options.make_device = [] {
    auto device = std::make_unique<LateDevice>(LateOptions{.graphs = true});
    device->FailNext("Embedding", 1);  // The first pass is no capture.
    return device;
  };
  RecordingSink sink;
  EXPECT_EQ(LoadedRunner::Create(options, &sink).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Counts what ran between two captures.
class PassesBefore : public LateDevice {
 public:
  PassesBefore() : LateDevice({.graphs = true}) {}
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) override {
    EXPECT_TRUE(idle());
    works_.push_back(num_works() - before_);
    auto graph = LateDevice::Capture(enqueue);
    before_ = num_works();
    return graph;
  }
  const std::vector<int64_t>& works() const { return works_; }

 private:
  int64_t before_ = 0;
  std::vector<int64_t> works_;
};

// Kernels that were never launched are loaded by their first launch, which a capture forbids.
TEST(StepGraphsTest, EachCaptureComesAfterAPassOfItsOwnKernels) {
  RunnerOptions options = LateGraphOptions({});
  options.num_blocks = 8;
  options.max_step_rows = 4;
  options.make_device = [] { return std::make_unique<PassesBefore>(); };
  RecordingSink sink;
  const auto runner = LoadedRunner::Create(options, &sink);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<int64_t>& works =
      static_cast<PassesBefore&>((*runner)->device()).works();
  ASSERT_EQ(works.size(), 3u);
  // An upload is two or three.
  for (size_t i = 1; i < works.size(); ++i) EXPECT_GT(works[i], 10) << i;
}

class FullDevice : public LateDevice {
 public:
  FullDevice() : LateDevice({.graphs = true}) {}
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) override {
    if (++num_graphs_ == 2) return absl::ResourceExhaustedError("out of memory");
    return LateDevice::Capture(enqueue);
  }

 private:
  int num_graphs_ = 0;
};

TEST(StepGraphsTest, OneThatDoesNotFitIsRefusedByOption) {
  RunnerOptions options = LateGraphOptions({});
  options.num_blocks = 8;
  options.max_step_rows = 2;
  options.make_device = [] { return std::make_unique<FullDevice>(); };
  RecordingSink sink;
  const absl::Status status = LoadedRunner::Create(options, &sink).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("a graph of 2 rows: out of memory"),
                             testing::HasSubstr("lower --gpu-memory-fraction"),
                             testing::HasSubstr("--gpu-graphs off")));
}

}  // namespace
}  // namespace baton
