// Two steps in flight: a step that starts before the tokens of the one before it are known gives
// what it gives when they are.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/follow_up_steps.h"

namespace baton {
namespace {

const std::vector<int32_t> kTokens = {9, 3, 9, 9, 1, 7};  // Of each sequence: some end earlier.

RunnerOptions FollowedOptions() {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
          .num_blocks = 96,
          .max_step_tokens = 256,
          .max_step_rows = 8};
}

RunnerOptions LateFollowed(const LateOptions& late) {
  RunnerOptions options = FollowedOptions();
  options.make_device = [late] { return std::make_unique<LateDevice>(late); };
  return options;
}

LateDevice& DeviceOf(FollowUpSteps& steps) {
  return static_cast<LateDevice&>(steps.runner().device());
}

FollowUpSteps::Outputs Expected(bool digests) {
  FollowUpSteps steps(FollowedOptions(), FollowUpContexts(digests), kTokens);
  FollowUpSteps::Outputs outputs = steps.Run(/*two=*/false);
  EXPECT_EQ(outputs[0].size(), 9u);
  EXPECT_EQ(outputs[4].size(), 1u);
  return outputs;
}

TEST(FollowUpTest, OnTheCpu) {
  for (const bool digests : {false, true}) {
    FollowUpSteps steps(FollowedOptions(), FollowUpContexts(digests), kTokens);
    EXPECT_EQ(steps.Run(/*two=*/true), Expected(digests));
    EXPECT_TRUE(steps.status().ok()) << steps.status();
  }
}

// With ranks a follow-up starts when the step before it has ended on all of them.
TEST(FollowUpTest, OnTwoRanks) {
  RunnerOptions options = FollowedOptions();
  options.tp = 2;
  FollowUpSteps steps(options, FollowUpContexts(true), kTokens);
  EXPECT_EQ(steps.Run(/*two=*/true), Expected(true));
  EXPECT_TRUE(steps.status().ok()) << steps.status();
}

// The device has all of a follow-up when the step before it is reported; with rows that the host
// samples it has nothing of it.
TEST(FollowUpTest, ADeviceHasItBeforeTheStepBeforeHasEnded) {
  for (const bool digests : {false, true}) {
    const FollowUpSteps::Outputs expected = Expected(digests);
    int num_busy = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const bool only_when_asked = seed % 3 != 0;  // Else it depends on the time what has ended.
      FollowUpSteps steps(LateFollowed({.seed = seed,
                                        .only_when_asked = only_when_asked,
                                        .copies_last = seed % 2 == 0,
                                        .graphs = seed % 4 < 2}),
                          FollowUpContexts(digests), kTokens);
      steps.set_on_done([&] { num_busy += only_when_asked && !DeviceOf(steps).idle() ? 1 : 0; });
      ASSERT_EQ(steps.Run(/*two=*/true), expected) << seed << ", digests " << digests;
    }
    // At most 64. A device that has ended all when it is asked for one gets none.
    EXPECT_EQ(num_busy > 0, !digests) << num_busy;
  }
}

// One that is started when the step before it has just begun: what the device copies for that one
// is not written over before it has landed.
TEST(FollowUpTest, ItWaitsForWhatTheStepBeforeItsHasToCopy) {
  const FollowUpSteps::Outputs expected = Expected(false);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    FollowUpSteps steps(LateFollowed({.seed = seed,
                                      .only_when_asked = true,
                                      .copies_last = seed % 2 == 0,
                                      .graphs = seed % 4 < 2}),
                        FollowUpContexts(false), kTokens);
    steps.set_starts_at_once();
    ASSERT_EQ(steps.Run(/*two=*/true), expected) << seed;
    EXPECT_TRUE(steps.status().ok()) << steps.status();
  }
}

// More rows than logits are made at a time: it starts when the step before has ended.
TEST(FollowUpTest, OfAStepWithSeveralSlicesOfLogits) {
  // With digests the host reads some of the first slice.
  for (const bool digests : {false, true}) {
    FollowUpSteps steps(LateFollowed({.seed = 5, .logit_rows = 4}), FollowUpContexts(digests),
                        kTokens);
    EXPECT_EQ(steps.Run(/*two=*/true), Expected(digests));
    EXPECT_TRUE(steps.status().ok()) << steps.status();
  }
}

// Its follow-up would fit into one slice, as the step before did, and is there while the first
// slice is waited for.
TEST(FollowUpTest, OfAStepThatHasMoreSlicesThanTheOneBefore) {
  FollowUpSteps steps(LateFollowed({.seed = 5, .only_when_asked = true, .logit_rows = 5}),
                      FollowUpContexts(false), kTokens);
  steps.set_starts_at_once();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(steps.Run(/*two=*/true), Expected(false)) << i;
}

// Wherever one of its operators fails, and it is the first that does, it ends with that error, and
// those behind it with the same; nothing is left behind.
TEST(FollowUpTest, AnErrorEndsAStepAndItsFollowUps) {
  const std::map<std::string, int> num_calls = {
      {"Embedding", 9}, {"Gemm", 1000}, {"Sample", 9}, {"TakeTokens", 16}};
  for (const auto& [op, calls] : num_calls) {
    for (int skip = 0; skip < 60; skip += 7) {
      FollowUpSteps steps(LateFollowed({.seed = 3, .only_when_asked = true}),
                          FollowUpContexts(false), kTokens);
      DeviceOf(steps).FailNext(op, skip);
      steps.Run(/*two=*/true);
      EXPECT_TRUE(DeviceOf(steps).idle()) << op << " " << skip;
      // Those that start when the step before has ended take no tokens.
      if (op == "TakeTokens" && skip > 0 && skip < calls) continue;
      EXPECT_EQ(steps.status().ok(), skip >= calls) << op << " " << skip;
    }
  }
}

TEST(FollowUpTest, ItFailsWithTheStepBeforeIt) {
  for (const int tp : {1, 2}) {
    RunnerOptions options = FollowedOptions();
    options.tp = tp;
    RecordingSink sink;
    auto runner = LoadedRunner::Create(options, &sink);
    ASSERT_TRUE(runner.ok()) << runner.status();
    (*runner)->Stop();
    const auto context = FollowUpContexts(false)[0];
    const auto plan = [&](uint64_t step, std::vector<int32_t> tokens, int32_t past, int follows) {
      auto made = std::make_shared<StepPlan>();
      made->step = step;
      made->rows = {{.tokens = std::move(tokens),
                     .context_len = past,
                     .block_table = {0},
                     .sample = true,
                     .sampling = context,
                     .follows = follows}};
      return made;
    };
    (*runner)->Start(plan(1, context->prompt, 0, -1));
    // It may have ended by now, or not.
    (*runner)->Start(plan(2, {0}, static_cast<int32_t>(context->prompt.size()), 0));
    for (const uint64_t step : {1, 2}) {
      const StepDone done = sink.WaitForStep();
      EXPECT_EQ(done.step, step);
      EXPECT_EQ(done.status.code(), absl::StatusCode::kCancelled);
    }
  }
}

}  // namespace
}  // namespace baton
