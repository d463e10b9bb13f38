// Sequences of a model whose layers are in two groups: one sees all tokens, the other a window of
// 12, beside which 4 more are kept.

#include <algorithm>
#include <iterator>
#include <set>

#include "common/engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

constexpr int32_t kWindow = 12;
constexpr int32_t kSpare = 4;

class LayerGroupsEngineTest : public EngineHarness {
 protected:
  void Grouped(const EngineOptions& options, int32_t num_blocks) {
    Create(options, num_blocks,
           KvLayout{.block_size = kBlockSize,
                    .groups = {{.num_layers = 1},
                               {.num_layers = 1, .window = kWindow, .spare = kSpare}}});
  }
  int32_t NumHeld() const { return pool_->num_blocks() - pool_->num_available(); }
  // Each group has what the row's first query sees and what the row writes.
  static void ExpectVisible(const StepRow& row) {
    const auto entries = static_cast<int32_t>(row.block_table.size()) / 2;
    EXPECT_GE(entries * kBlockSize, row.context_len + std::ssize(row.tokens));
    const int32_t seen = std::max(0, row.context_len - kWindow + 1);
    const int32_t kept = std::max(0, seen - kSpare);
    for (int32_t i = 0; i < entries; ++i) {
      EXPECT_GE(row.block_table[i], 0) << i;
      const bool is_seen = (i + 1) * kBlockSize > seen;
      const bool is_kept = (i + 1) * kBlockSize > kept;
      if (is_seen) {
        EXPECT_GE(row.block_table[entries + i], 0) << i;
      }
      if (!is_kept) {
        EXPECT_EQ(row.block_table[entries + i], -1) << i;
      }
    }
  }
};

TEST_F(LayerGroupsEngineTest, OnlyTheWindowsBlocksOfALongAnswerGoBack) {
  Grouped({.chunk_tokens = 8}, 128);
  engine_->Add(Decoding(1, 6));
  for (int32_t i = 0; i < 200; ++i) {
    ExpectVisible(Start()->rows[0]);
    Finish();
  }
  // 206 tokens; of the other group those from 191 on are kept.
  EXPECT_EQ(NumHeld(), 52 + 5);
}

TEST_F(LayerGroupsEngineTest, AnEntryIsABlockOfEachGroupOrNone) {
  Grouped({.chunk_tokens = 8}, 9);
  engine_->Add(Decoding(1, 16));  // Its next token needs a fifth entry: one block is left.
  EXPECT_EQ(Start(), nullptr);
  EXPECT_EQ(NumHeld(), 8);
}

TEST_F(LayerGroupsEngineTest, WhatIsSwappedOutOfEachGroupComesBackToTheSamePlaces) {
  Grouped({.chunk_tokens = 64, .swap_blocks = 64}, 48);
  engine_->Add(Decoding(1, 6));
  engine_->Add(Decoding(3, 50));
  BlockTable others;
  ASSERT_TRUE(pool_->Grow(others, pool_->num_available() / 2 - 1));
  while (engine_->num_preempted() == 0) {
    ASSERT_NE(Start(), nullptr);
    if (engine_->num_preempted() == 0) Finish();
  }
  const StepPlan out = *engine_->step_in_flight();
  ASSERT_EQ(engine_->num_swaps(), 1);
  Finish();
  others.Release();
  BlockTable flush;  // Its blocks are no longer cached.
  ASSERT_TRUE(pool_->Grow(flush, pool_->num_available() / 2));
  flush.Release();
  const StepPlan* plan = Start();
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(plan->swap_in.size(), out.swap_out.size());
  const StepRow& row = plan->rows.back();
  ASSERT_EQ(row.sequence.counter, 3u);
  ExpectVisible(row);
  std::vector<BlockId> held;
  std::ranges::copy_if(row.block_table, std::back_inserter(held),
                       [](BlockId id) { return id >= 0; });
  // The row's last entry may be new in each group; all others came from the host, in their order.
  std::vector<BlockId> brought;
  for (size_t i = 0; i < out.swap_out.size(); ++i) {
    EXPECT_EQ(plan->swap_in[i].source, out.swap_out[i].destination);
    brought.push_back(plan->swap_in[i].destination);
  }
  EXPECT_TRUE(std::ranges::includes(std::set(held.begin(), held.end()),
                                    std::set(brought.begin(), brought.end())));
  EXPECT_LE(held.size(), brought.size() + 2);
  for (int32_t i = 0; i < 40; ++i) {
    Finish();
    for (const StepRow& next : Start()->rows) ExpectVisible(next);
  }
}

// A prefix is found with less of the window than would be kept; what leaves for the host then is
// what comes back.
TEST_F(LayerGroupsEngineTest, WhatAPrefixDidNotBringIsNotSwappedOut) {
  Grouped({.chunk_tokens = 64, .swap_blocks = 64}, 64);
  engine_->Add(Decoding(1, 33));
  ASSERT_NE(Start(), nullptr);
  Finish(kEos);
  auto again = New(1, 33);
  again->blocks = pool_->Match("t", again->tokens, 32);
  ASSERT_EQ(again->blocks.num_sealed(), 8);
  EXPECT_EQ(again->blocks.num_passed(1), (32 - kWindow + 1) / kBlockSize);
  ASSERT_TRUE(pool_->Grow(again->blocks, 1));
  again->num_computed = 32;
  again->host_blocks = {};
  SwapSpace space(32, *pool_);
  ASSERT_TRUE(space.MoveOut(*again));
  StepPlan plan;
  ASSERT_TRUE(space.AddTo(plan));
  EXPECT_EQ(plan.swap_out.size(), 8u + 3);
  space.OnStepDone();
  pool_->PassAs(again->blocks, again->host_blocks);
  ASSERT_TRUE(pool_->Grow(again->blocks, 9));
  space.MoveIn(*again);
  ASSERT_TRUE(space.AddTo(plan));
  EXPECT_EQ(plan.swap_in.size(), 8u + 3);
  space.OnStepDone();
}

}  // namespace
}  // namespace baton
