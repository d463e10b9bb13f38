// Ranks over devices that work late, each for itself: their bits are the CPU's, what is reported
// has ended on all of them, and one that does not end ends the group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>

#include "common/base/random.h"
#include "tests/late_device/late_device.h"
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
  LostFn fn() {
    return [this](const absl::Status& status) {
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
  std::mutex mutex_;
  std::vector<absl::Status> reasons_;
  std::promise<void> ended_;
};

constexpr auto kLimit = std::chrono::milliseconds(200);

TEST_F(LateRanksTest, ALostDeviceEndsAllRanks) {
  for (const size_t broken : {0, 1}) {
    for (const int works : {0, 1, 20, 60, 100}) {
      RanksSink sink(&devices_);
      Ending ending;
      {
        // The other awaits it.
        auto runner = *LoadedRunner::Create(Options({.seed = 3, .limit = kLimit}), &sink,
                                            ending.fn());
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
    Ending ending;
    {
      auto runner = *LoadedRunner::Create(Options({.seed = 5, .limit = kLimit}), &sink,
                                          ending.fn());
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
    Ending ending;
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

}  // namespace
}  // namespace baton
