// Blocks that a TransformerRunner moves over a device whose work ends later than it was asked for.
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/common/model/late_harness.h"

namespace baton {
namespace {

// A sequence moves out while another computes, and back before its next token; the blocks that it
// left are poisoned at once.
TEST(LateRunnerTest, SwappedKvComesBackAndItsOldBlocksAreFreeAtStepDone) {
  const auto context = LatePrompt(32);
  RunnerHarness cpu(CpuOptions());
  const Generated expected = Generate(cpu, context, {.num_tokens = 2});
  for (uint64_t seed = 0; seed < 12; ++seed) {
    LateHarness late({.seed = seed, .only_when_asked = seed % 2 == 0, .copies_last = seed % 4 < 2});
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
  expect_moved({{0, 3}, {2, 4}, {4, 5}, {9, 6}});    // Destinations.
  expect_moved({{4, 1}, {5, 3}, {6, 5}, {7, 9}});    // Sources.
  expect_moved({{6, 4}, {5, 3}, {4, 2}});            // Backwards.
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

}  // namespace
}  // namespace baton
