// A step that copies blocks for some of its rows gives the bits of having computed them.
#include <gtest/gtest.h>

#include <span>

#include "common/base/random.h"
#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

RunnerOptions Options(int tp = 1) {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
          .num_blocks = 64,
          .tp = tp,
          .max_step_tokens = 128};
}

std::shared_ptr<SamplingContext> Context(int32_t num_tokens, uint64_t seed) {
  auto context = std::make_shared<SamplingContext>();
  Random random(seed);
  for (int32_t i = 0; i < num_tokens; ++i) {
    context->prompt.push_back(static_cast<int32_t>(random.Below(4096)));
  }
  context->params.logits_digest = true;
  return context;
}

StepRow OneToken(const std::shared_ptr<SamplingContext>& context, int32_t token, int32_t at,
                 std::vector<BlockId> blocks) {
  return {.tokens = {token},
          .context_len = at,
          .block_table = std::move(blocks),
          .sample = true,
          .sampling = context,
          .num_emitted = at + 1 - static_cast<int32_t>(context->prompt.size())};
}

StepDone StepWith(RunnerHarness& harness, std::vector<StepRow> rows,
                  std::vector<BlockMove> copies) {
  auto plan = std::make_shared<StepPlan>();
  plan->step = 1000;
  plan->rows = std::move(rows);
  plan->copies = std::move(copies);
  harness.runner().Start(std::move(plan));
  return harness.sink().WaitForStep();
}

// A prompt of 20 tokens lies in two blocks of 16, and its first choice goes on in the second.
void CheckChoices(RunnerHarness& harness, const Generated& expected, const char* name) {
  const auto context = Context(20, 1);
  const Generated first = Generate(harness, context, {.num_tokens = 1});
  // Another sequence has left what it had where the copies go.
  Generate(harness, Context(40, 2), {.num_tokens = 1, .first_block = 8});
  const int32_t token = first.outputs[0].token;
  const StepDone done = StepWith(
      harness,
      {OneToken(context, context->prompt[19], 19, {0, 9}),
       OneToken(context, context->prompt[19], 19, {0, 8}), OneToken(context, token, 20, {0, 1})},
      {{1, 9}, {1, 8}});
  ASSERT_TRUE(done.status.ok()) << done.status;
  EXPECT_EQ(done.rows[0].output, expected.outputs[0]) << name;
  EXPECT_EQ(done.rows[1].output, expected.outputs[0]) << name;
  EXPECT_EQ(done.rows[2].output, expected.outputs[1]) << name;
  const StepDone next = harness.Step({OneToken(context, token, 20, {0, 9})});
  EXPECT_EQ(next.rows[0].output, expected.outputs[1]) << name;
}

Generated Expected() {
  RunnerHarness cpu(Options());
  return Generate(cpu, Context(20, 1), {.num_tokens = 2});
}

TEST(CopiedBlocksTest, ARowGoesOnFromACopyOfWhatAnotherAppendsTo) {
  const Generated expected = Expected();
  for (const int tp : {1, 2}) {
    RunnerHarness harness(Options(tp));
    CheckChoices(harness, expected, "cpu");
  }
}

TEST(CopiedBlocksTest, OnADeviceTheCopyHasLandedBeforeTheRowReadsIt) {
  const Generated expected = Expected();
  for (uint64_t seed = 0; seed < 12; ++seed) {
    for (const int tp : {1, 2}) {
      RunnerOptions options = Options(tp);
      options.make_device = [seed, next = uint64_t{0}]() mutable {
        return std::make_unique<LateDevice>(LateOptions{.seed = 2 * seed + next++,
                                                        .only_when_asked = seed % 2 == 0,
                                                        .copies_last = seed % 4 < 2,
                                                        .graphs = seed % 3 == 0});
      };
      RunnerHarness harness(options);
      CheckChoices(harness, expected, "late");
    }
  }
}

// Counts what its kernels wait for on the lane of copies.
class CountingDevice : public LateDevice {
 public:
  CountingDevice() : LateDevice({}) {}
  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override {
    num_copies += lane == Lane::kCopies ? std::ssize(pieces) : 0;
    return LateDevice::CopyPieces(lane, pieces);
  }
  absl::Status After(Lane lane, Mark mark) override {
    if (lane == Lane::kCompute) num_waited = num_copies;
    return LateDevice::After(lane, mark);
  }
  int64_t num_copies = 0;  // Pieces.
  int64_t num_waited = 0;
};

TEST(CopiedBlocksTest, RowsAndTheirCopiesDoNotWaitForWhatMovesOut) {
  RunnerOptions options = Options();
  options.swap_blocks = 16;
  options.make_device = [] { return std::make_unique<CountingDevice>(); };
  RunnerHarness harness(options);
  auto& device = static_cast<CountingDevice&>(harness.runner().device());
  const auto context = Context(20, 1);
  const Generated first = Generate(harness, context, {.num_tokens = 1});
  const auto step = [&](std::vector<BlockMove> out) {
    auto plan = std::make_shared<StepPlan>();
    plan->step = 1000 + out.size();
    plan->rows = {OneToken(context, context->prompt[19], 19, {0, 9}),
                  OneToken(context, first.outputs[0].token, 20, {0, 1})};
    plan->copies = {{1, 9}};
    plan->swap_out = std::move(out);
    device.num_copies = device.num_waited = 0;
    harness.runner().Start(std::move(plan));
    EXPECT_TRUE(harness.sink().WaitForStep().status.ok());
  };
  step({});
  const int64_t copied = device.num_copies;
  EXPECT_GT(copied, 0);
  EXPECT_EQ(device.num_waited, copied);
  step({{20, 3}, {22, 5}});
  EXPECT_EQ(device.num_copies, 3 * copied);
  EXPECT_EQ(device.num_waited, copied);
}

// Those that a list without swapping does not hold wait for it.
TEST(CopiedBlocksTest, MoreCopiesThanAListHoldsAllArrive) {
  constexpr int32_t kTokens = 400;  // Each in a block of its own, in 12 planes or more.
  const auto context = Context(kTokens, 3);
  RunnerOptions options = Options();
  options.block_size = 1;
  options.num_blocks = 2 * kTokens + 2;
  options.max_step_tokens = 2048;
  RunnerHarness harness(options);
  const Generated expected = Generate(harness, context, {.num_tokens = 2});
  std::vector<BlockMove> copies;
  std::vector<BlockId> blocks;
  for (BlockId i = 0; i < kTokens; ++i) {
    copies.push_back({i, 2 * kTokens - i});  // No two neighbours in both.
    blocks.push_back(copies.back().destination);
  }
  blocks.push_back(2 * kTokens + 1);
  const StepDone done =
      StepWith(harness, {OneToken(context, expected.outputs[0].token, kTokens, blocks)}, copies);
  ASSERT_TRUE(done.status.ok()) << done.status;
  EXPECT_EQ(done.rows[0].output, expected.outputs[1]);
}

}  // namespace
}  // namespace baton
