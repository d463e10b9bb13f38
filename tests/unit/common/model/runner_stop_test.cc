// TransformerRunner: what a stop does to steps in progress and to later ones.
#include <gtest/gtest.h>

#include "tests/unit/common/model/loaded_runner.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

RunnerOptions StopOptions() {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv", .num_blocks = 256};
}

// Stops its runner at the first RowsDone.
class StoppingSink : public RecordingSink {
 public:
  void OnRowsDone(const RowsDone& done) override {
    RecordingSink::OnRowsDone(done);
    runner->Stop();
  }
  LoadedRunner* runner = nullptr;
};

TEST(RunnerStopTest, AStepThatStartsAfterStopEndsAtOnceWithCancelled) {
  RunnerHarness harness(StopOptions());
  harness.runner().Stop();
  for (int i = 0; i < 2; ++i) {
    const StepDone done = harness.Step({{.tokens = {1}, .block_table = {0}}});
    EXPECT_EQ(done.status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(done.rows.empty());
    EXPECT_TRUE(harness.sink().TakeLayers().empty());
  }
}

TEST(RunnerStopTest, AStoppedRunnerReadsNoFurtherRows) {
  StoppingSink sink;
  auto runner = LoadedRunner::Create(StopOptions(), &sink);
  ASSERT_TRUE(runner.ok());
  sink.runner = runner->get();
  auto prompt = std::make_shared<SamplingContext>();
  prompt->prompt.assign(1000, 5);
  prompt->params.num_prompt_logprobs = 1;
  auto plan = std::make_shared<StepPlan>();
  plan->step = 4;
  plan->rows.push_back({.tokens = prompt->prompt, .block_table = {}, .sampling = prompt});
  for (BlockId block = 0; block < 63; ++block) plan->rows[0].block_table.push_back(block);
  (*runner)->Start(plan);
  const StepDone done = sink.WaitForStep();
  EXPECT_EQ(done.step, 4u);
  EXPECT_EQ(done.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(done.rows.empty());
  EXPECT_EQ(sink.TakeMarks().size(), 1u);
}

}  // namespace
}  // namespace baton
