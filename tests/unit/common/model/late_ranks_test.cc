// Ranks over devices that work late, each for itself: their bits are the CPU's, what is reported
// has ended on all of them, and one that does not end ends the group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>

#include "common/base/random.h"
#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/decode_steps.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

class LateRanksTest : public testing::Test {
 protected:
  static RunnerOptions CpuOptions() {
    return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
            .num_blocks = 64,
            .swap_blocks = 16,
            .max_step_tokens = 128};
  }
  // On two devices.
  RunnerOptions Options(LateOptions late) {
    devices_.clear();
    RunnerOptions options = CpuOptions();
    options.tp = 2;
    options.make_device = [this, late]() mutable {
      late.seed = late.seed * 2 + 1;
      auto device = std::make_unique<LateDevice>(late);
      devices_.push_back(device.get());
      return device;
    };
    return options;
  }
  static std::shared_ptr<SamplingContext> Prompt(int32_t length) {
    auto context = std::make_shared<SamplingContext>();
    Random random(static_cast<uint64_t>(length));
    for (int32_t i = 0; i < length; ++i) {
      context->prompt.push_back(static_cast<int32_t>(random.Below(4096)));
    }
    context->params.logits_digest = true;
    return context;
  }
  static std::shared_ptr<StepPlan> Plan(int32_t length) {
    auto plan = std::make_shared<StepPlan>();
    const auto prompt = Prompt(length);
    plan->rows = {{.tokens = prompt->prompt, .block_table = {0, 1}, .sample = true,
                   .sampling = prompt}};
    return plan;
  }
  // Short ones. A load may take longer.
  void SetLimits() {
    for (LateDevice* device : devices_) device->SetLimit(std::chrono::milliseconds(200));
  }

  std::vector<LateDevice*> devices_;
};

// Says when a step is reported before all devices have ended it.
class RanksSink : public RecordingSink {
 public:
  explicit RanksSink(const std::vector<LateDevice*>* devices) : devices_(devices) {}
  void OnStepDone(StepDone done) override {
    for (const LateDevice* device : *devices_) EXPECT_TRUE(device->idle());
    RecordingSink::OnStepDone(std::move(done));
  }

 private:
  const std::vector<LateDevice*>* const devices_;
};

TEST_F(LateRanksTest, EveryOrderOfTheDevicesGivesTheCpusBits) {
  const auto prompt = Prompt(40);
  auto scored = Prompt(75);
  scored->params.num_prompt_logprobs = 1;
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, prompt, {.num_tokens = 4});
  const Generated scores = Generate(cpu, scored, {.num_tokens = 1});
  for (uint64_t seed = 0; seed < 8; ++seed) {
    RanksSink sink(&devices_);
    RunnerHarness late(Options({.seed = seed, .only_when_asked = seed % 2 == 0, .logit_rows = 16}),
                       &sink);
    const int32_t chunk = seed % 3 == 0 ? 100 : 33;
    const Generated got = Generate(late, prompt, {.chunk_tokens = chunk, .num_tokens = 4});
    EXPECT_EQ(got.outputs, expected.outputs) << seed;
    const Generated scored_late = Generate(late, scored, {.num_tokens = 1});
    EXPECT_EQ(scored_late.prompt_logprobs, scores.prompt_logprobs) << seed;
  }
}

// Blocks go to the host's memory and come back on each device by itself.
TEST_F(LateRanksTest, BlocksThatWereAwayGiveTheSameBits) {
  const auto prompt = Prompt(20);
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, prompt, {.num_tokens = 1});
  for (uint64_t seed = 0; seed < 6; ++seed) {
    RanksSink sink(&devices_);
    RunnerHarness late(Options({.seed = seed, .copies_last = seed % 2 == 0}), &sink);
    ASSERT_EQ(Generate(late, prompt, {.num_tokens = 1}).outputs, expected.outputs);
    ASSERT_TRUE(late.Move({{.source = 0, .destination = 3}, {.source = 1, .destination = 9}}, {})
                    .status.ok());
    auto plan = std::make_shared<StepPlan>();
    plan->step = 100;
    plan->swap_in = {{.source = 3, .destination = 40}, {.source = 9, .destination = 12}};
    plan->rows = {{.tokens = {prompt->prompt.back()},
                   .context_len = 19,
                   .block_table = {40, 12},
                   .sample = true,
                   .sampling = prompt}};
    late.runner().Start(plan);
    const StepDone done = sink.WaitForStep();
    ASSERT_TRUE(done.status.ok()) << done.status;
    EXPECT_EQ(done.rows[0].output.logits_digest, expected.outputs[0].logits_digest) << seed;
  }
}

// Waits for the group's end; there is one, and no step's.
class Ending {
 public:
  explicit Ending(const std::vector<LateDevice*>* devices) : devices_(devices) {}
  LostFn fn() {
    return [this](const absl::Status& status) {
      for (LateDevice* device : *devices_) device->Lose();
      const std::lock_guard lock(mutex_);
      reasons_.push_back(status);
      if (reasons_.size() == 1) ended_.set_value();
    };
  }
  void Await() { ended_.get_future().wait(); }
  std::vector<absl::Status> reasons() {
    const std::lock_guard lock(mutex_);
    return reasons_;
  }

 private:
  const std::vector<LateDevice*>* const devices_;
  std::mutex mutex_;
  std::vector<absl::Status> reasons_;
  std::promise<void> ended_;
};

TEST_F(LateRanksTest, ALostDeviceEndsAllRanks) {
  for (const size_t broken : {0, 1}) {
    for (const int works : {0, 1, 20, 40, 55}) {
      RanksSink sink(&devices_);
      Ending ending(&devices_);
      {
        // The other awaits it.
        auto runner = *LoadedRunner::Create(Options({.seed = 3}), &sink, ending.fn());
        SetLimits();
        devices_[broken]->LoseAfter(works);
        runner->Start(Plan(20));
        ending.Await();
      }
      EXPECT_EQ(ending.reasons().size(), 1u) << broken << " " << works;
      EXPECT_EQ(ending.reasons()[0].code(), absl::StatusCode::kUnavailable);
      EXPECT_FALSE(sink.HasStep());
    }
  }
}

TEST_F(LateRanksTest, ADeviceThatHangsEndsAllRanks) {
  for (const size_t broken : {0, 1}) {
    RanksSink sink(&devices_);
    Ending ending(&devices_);
    {
      auto runner = *LoadedRunner::Create(Options({.seed = 5}), &sink, ending.fn());
      SetLimits();
      devices_[broken]->HangAfter(50);
      runner->Start(Plan(20));
      ending.Await();
    }
    ASSERT_EQ(ending.reasons().size(), 1u) << broken;
    EXPECT_EQ(ending.reasons()[0],
              absl::UnavailableError("late has not ended its work within 200 ms"));
    EXPECT_FALSE(sink.HasStep());
  }
}

TEST_F(LateRanksTest, AnErrorOfOneRankEndsThemAll) {
  for (const size_t broken : {0, 1}) {
    RanksSink sink(&devices_);
    Ending ending(&devices_);
    {
      auto runner = *LoadedRunner::Create(Options({.seed = 7}), &sink, ending.fn());
      devices_[broken]->FailNext("RmsNorm", 5);
      runner->Start(Plan(20));
      ending.Await();
    }
    ASSERT_EQ(ending.reasons().size(), 1u) << broken;
    EXPECT_EQ(ending.reasons()[0], absl::InvalidArgumentError("late: RmsNorm fails"));
    EXPECT_FALSE(sink.HasStep());
  }
}

// The shortest are among them, and a step that none of the graphs serves.
std::vector<TokenOutput> DecodedBy(DecodeSteps& steps,
                                   const std::shared_ptr<SamplingContext>& prompt) {
  std::vector<TokenOutput> all;
  for (const std::vector<int32_t>& lengths : std::vector<std::vector<int32_t>>{
           {19}, {0, 40, 16}, {127, 3, 64, 65, 9}, {19}}) {
    for (TokenOutput& output : steps.Run(lengths)) all.push_back(std::move(output));
  }
  for (TokenOutput& output : Generate(steps.harness(), prompt, {.num_tokens = 1}).outputs) {
    all.push_back(std::move(output));
  }
  return all;
}

TEST_F(LateRanksTest, AGraphOverAllDevicesGivesTheBitsOfNoGraph) {
  DecodeSteps cpu(CpuOptions(), 5);
  const std::vector<TokenOutput> expected = DecodedBy(cpu, Prompt(20));
  for (uint64_t seed = 0; seed < 8; ++seed) {
    RanksSink sink(&devices_);
    const LateOptions late{.seed = seed, .only_when_asked = seed % 2 == 0, .graphs = true};
    DecodeSteps on(Options(late), 5, &sink);
    sink.TakeLayers();
    EXPECT_EQ(DecodedBy(on, Prompt(20)), expected) << seed;
    EXPECT_EQ(devices_[0]->num_launches(), 4);
    EXPECT_EQ(devices_[1]->num_launches(), 0);
    EXPECT_EQ(sink.TakeLayers().size(), 5u * 6);
  }
}

// Forgets one wait of a lane for a peer: of the capture, or of all launches.
class ForgetfulDevice : public LateDevice {
 public:
  struct Forgets {
    bool in_graph = false;
    int wait = 0;  // Which of the capture; of launches the only one of this rank, or the first.
  };
  ForgetfulDevice(const LateOptions& late, Forgets forgets)
      : LateDevice(late), forgets_(forgets) {}
  absl::Status AfterPeer(Lane lane, const Device& peer, Mark mark) override {
    const bool in_graph = mark.number >> 63 != 0;
    if (in_graph && forgets_.in_graph && waits_++ == forgets_.wait) return absl::OkStatus();
    if (!in_graph && !forgets_.in_graph && is_captured) return absl::OkStatus();
    return LateDevice::AfterPeer(lane, peer, mark);
  }
  bool is_captured = false;

 private:
  const Forgets forgets_;
  int waits_ = 0;
};

// What each edge is for: without it some order of the devices gives other bits, or is refused.
TEST_F(LateRanksTest, NoEdgeOfAGraphOrAroundItsLaunchIsSpare) {
  struct Case {
    const char* name;
    size_t rank;
    ForgetfulDevice::Forgets forgets;
  };
  // A model of 6 layers: 12 exchanges, at each of which a rank waits for the other, and the join.
  const Case cases[] = {{"sums of the other", 0, {.in_graph = true, .wait = 0}},
                        {"sums of the first", 1, {.in_graph = true, .wait = 5}},
                        {"the metadata of the other", 0, {}},
                        {"the end of the graph", 1, {}}};
  const auto bits_of = [](DecodeSteps& steps) {
    std::vector<uint64_t> all;
    for (const int32_t length : {19, 64, 3, 127}) {
      const StepDone done = steps.harness().Step({steps.Row(0, length)});
      // A row may be no numbers at all.
      const bool is_row = done.status.ok() && done.rows[0].status.ok();
      all.push_back(is_row ? done.rows[0].output.logits_digest : 0);
    }
    return all;
  };
  DecodeSteps cpu(CpuOptions(), 1);
  const std::vector<uint64_t> expected = bits_of(cpu);
  for (const Case& bug : cases) {
    int wrong = 0;
    // By chance, as threads meet: a forgotten wait shows in one of some twenty seeds.
    for (uint64_t seed = 0; seed < 300 && wrong == 0; ++seed) {
      std::vector<ForgetfulDevice*> devices;
      RunnerOptions options = Options({});
      options.make_device = [&] {
        const LateOptions late{.seed = seed * 7 + devices.size(), .graphs = true};
        const bool is_bad = devices.size() == bug.rank;
        auto device = std::make_unique<ForgetfulDevice>(
            late, is_bad ? bug.forgets : ForgetfulDevice::Forgets{.in_graph = true, .wait = -1});
        devices.push_back(device.get());
        return device;
      };
      DecodeSteps on(options, 1);
      for (ForgetfulDevice* device : devices) device->is_captured = true;
      wrong += bits_of(on) != expected ? 1 : 0;
    }
    EXPECT_GT(wrong, 0) << bug.name;
  }
}

class AskedDevice : public LateDevice {
 public:
  explicit AskedDevice(std::vector<int32_t>* heads)
      : LateDevice({.graphs = true}), heads_(*heads) {}
  int32_t LongestReplay(int32_t rows, const ModelNeeds& needs) const override {
    heads_.push_back(needs.num_heads);
    return LateDevice::LongestReplay(rows, needs);
  }

 private:
  std::vector<int32_t>& heads_;
};

// Each device computes attention over no more.
TEST_F(LateRanksTest, HowLongAGraphServesIsAskedForTheHeadsOfARank) {
  std::vector<int32_t> heads;
  RunnerOptions options = Options({});
  options.max_step_rows = 1;
  options.make_device = [&] { return std::make_unique<AskedDevice>(&heads); };
  RecordingSink sink;
  ASSERT_TRUE(LoadedRunner::Create(options, &sink).ok());
  EXPECT_EQ(heads, std::vector<int32_t>{3});  // Of 6.
}

TEST_F(LateRanksTest, ALaunchThatFailsFailsItsStepAlone) {
  DecodeSteps cpu(CpuOptions(), 2);
  DecodeSteps on(Options({.seed = 3, .graphs = true}), 2);
  devices_[0]->FailNext("Launch", 0);
  EXPECT_EQ(on.harness().Step({on.Row(0, 5)}).status,
            absl::InvalidArgumentError("late: Launch fails"));
  EXPECT_EQ(on.Run({6, 7}), cpu.Run({6, 7}));
}

// In each rank, at the pass before a capture, amid one of the captures, and behind it.
TEST_F(LateRanksTest, AnErrorAmidACaptureIsOneOfTheLoad) {
  for (const size_t broken : {0, 1}) {
    for (const int norm : {0, 12, 13, 20, 30, 45}) {
      RunnerOptions options = Options({});
      options.num_blocks = 8;
      options.max_step_rows = 2;
      size_t made = 0;
      options.make_device = [&] {
        auto device = std::make_unique<LateDevice>(LateOptions{.graphs = true});
        if (made++ == broken) device->FailNext("RmsNorm", norm);
        return device;
      };
      RecordingSink sink;
      EXPECT_EQ(LoadedRunner::Create(options, &sink).status(),
                absl::InvalidArgumentError("late: RmsNorm fails"))
          << broken << " " << norm;
    }
  }
}

class FullRankDevice : public LateDevice {
 public:
  FullRankDevice() : LateDevice({.graphs = true}) {}
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) override {
    RETURN_IF_ERROR(LateDevice::Capture(enqueue).status());
    return absl::ResourceExhaustedError("out of memory");
  }
};

TEST_F(LateRanksTest, AGraphThatDoesNotFitIsRefusedByOption) {
  RunnerOptions options = Options({});
  options.num_blocks = 8;
  options.max_step_rows = 2;
  options.make_device = [] { return std::make_unique<FullRankDevice>(); };
  RecordingSink sink;
  const absl::Status status = LoadedRunner::Create(options, &sink).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("take --gpu-graphs off"));
}

// Has no host memory left from one of its buffers on.
class FullHostDevice : public LateDevice {
 public:
  explicit FullHostDevice(int room) : LateDevice({.graphs = true}), room_(room) {}
  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kPinned && room_-- <= 0) {
      return absl::ResourceExhaustedError("no host memory");
    }
    return LateDevice::Allocate(bytes, kind);
  }

 private:
  int room_;
};

// The other rank waits for it in its first pass, and hears of it there.
TEST_F(LateRanksTest, WhatARankLacksIsToldAsItsOwnError) {
  int refused = 0;
  for (int room = 0; room < 20; ++room) {
    RunnerOptions options = Options({});
    options.num_blocks = 8;
    options.max_step_rows = 2;
    size_t made = 0;
    options.make_device = [&] {
      return std::make_unique<FullHostDevice>(made++ == 1 ? room : 1000);
    };
    RecordingSink sink;
    const absl::Status status = LoadedRunner::Create(options, &sink).status();
    if (status.ok()) break;
    ++refused;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("no host memory"));
    EXPECT_THAT(std::string(status.message()), testing::Not(testing::HasSubstr("graphs")));
  }
  EXPECT_GE(refused, 2);
  EXPECT_LT(refused, 20);
}

// Amid the graph, and behind it.
TEST_F(LateRanksTest, ALostDeviceAmidAGraphEndsAllRanksOnce) {
  for (const size_t broken : {0, 1}) {
    for (const int works : {0, 1, 3, 20, 60}) {
      RanksSink sink(&devices_);
      Ending ending(&devices_);
      {
        RunnerOptions options = Options({.seed = 3, .graphs = true});
        options.max_step_rows = 1;
        auto runner = *LoadedRunner::Create(options, &sink, ending.fn());
        SetLimits();
        devices_[broken]->LoseAfter(works);
        auto plan = std::make_shared<StepPlan>();
        const auto prompt = Prompt(1);
        plan->rows = {{.tokens = prompt->prompt, .block_table = {0}, .sample = true,
                       .sampling = prompt}};
        runner->Start(plan);
        ending.Await();
      }
      EXPECT_EQ(ending.reasons().size(), 1u) << broken << " " << works;
      EXPECT_EQ(ending.reasons()[0].code(), absl::StatusCode::kUnavailable);
      EXPECT_FALSE(sink.HasStep());
    }
  }
}

}  // namespace
}  // namespace baton
