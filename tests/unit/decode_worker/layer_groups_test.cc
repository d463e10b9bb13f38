// A decode worker of a model with two groups of layers: one sees all tokens, the other a window of
// 10, beside which 8 more are kept. Of 30 tokens the next query of the second sees those from 21
// on, and those from 13 on are handed over.

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::Pair;

class DecodeGroupsTest : public DecodeNodeHarness {
 protected:
  DecodeGroupsTest() : DecodeNodeHarness(GroupedModel(/*window=*/10, /*spare=*/8)) {}
  int32_t NumHeld() const { return pool_.num_blocks() - pool_.num_available(); }
  // In each group entries are there from these on.
  template <typename Blocks>
  static void ExpectFrom(const Blocks& blocks, int32_t wide, int32_t windowed) {
    const auto is_there = [](const auto& block) {
      if constexpr (requires { block.block; }) {
        return block.block >= 0;
      } else {
        return block >= 0;
      }
    };
    const int32_t entries = static_cast<int32_t>(blocks.size()) / 2;
    for (int32_t i = 0; i < entries; ++i) {
      EXPECT_EQ(is_there(blocks[i]), i >= wide) << i;
      EXPECT_EQ(is_there(blocks[entries + i]), i >= windowed) << i;
    }
  }
};

TEST_F(DecodeGroupsTest, ReservesInEachGroupWhatItIsHanded) {
  Open(1, Request(1, 30));
  const ExpectArgs& expect = transport_.expected[0];
  EXPECT_EQ(expect.first_token, 0);
  ASSERT_EQ(expect.blocks.size(), 2u * 8);
  ExpectFrom(expect.blocks, 0, 3);
  EXPECT_EQ(pool_.counts().reserved, 8 + 5);
  EXPECT_EQ(node_.Audit(now_).calls[0].num_blocks, 8 + 5);
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
}

TEST_F(DecodeGroupsTest, GoesOnBehindTheHandoffWithTheBlocksOfEachGroup) {
  Run(1, 30, 9);
  ExpectFrom(runner_.plans[0]->rows[0].block_table, 0, 3);
  for (int32_t i = 0; i < 7; ++i) FinishStep();
  // 37 tokens are computed: the windowed layer keeps those from 20 on.
  ExpectFrom(runner_.plans.back()->rows[0].block_table, 0, 5);
  EXPECT_EQ(NumHeld(), 10 + 5);
  FinishStep();
  EXPECT_TRUE(node_.idle());
}

TEST_F(DecodeGroupsTest, APrefixIsFoundThoughTheWindowHasLeftMostOfIt) {
  Run(1, 30, 2);
  FinishStep();
  ASSERT_TRUE(node_.idle());
  DecodeRequest longer = Request(1, 36);
  longer.attempt = 2;
  Open(2, std::move(longer));
  // Of the windowed layer the handoff brings tokens from 19 on: what it lacks before is not needed.
  const ExpectArgs& expect = transport_.expected.back();
  EXPECT_EQ(expect.first_token, 28);
  ExpectFrom(expect.blocks, 0, 4);
  EXPECT_EQ(node_.counters().cached_tokens, 28);
}

TEST_F(DecodeGroupsTest, APrefixThatEndsBeforeTheHandoffsWindowServesTheLayerThatSeesAll) {
  Run(1, 13, 2);
  FinishStep();
  DecodeRequest longer = Request(1, 36);
  longer.attempt = 2;
  Open(2, std::move(longer));
  EXPECT_EQ(transport_.expected.back().first_token, 12);
  ExpectFrom(transport_.expected.back().blocks, 0, 4);
}

TEST_F(DecodeGroupsTest, AFirstBlockWithoutItsFirstTokensIsNotFound) {
  Run(1, 30, 2);  // Entry 3 of the windowed layer lacks token 12.
  FinishStep();
  const std::vector<int32_t> tokens = Request(1, 30).tokens;
  // To compute from 20 tokens on a query sees from 11 on.
  EXPECT_EQ(pool_.Match("t", tokens, 20).num_sealed(), 0);
  // From 28 on it sees from 19 on.
  EXPECT_EQ(pool_.Match("t", tokens, 29).num_sealed(), 7);
}

// What is kept beyond the window makes the blocks before a prompt's end whole.
TEST_F(DecodeGroupsTest, AFurtherChoiceOfALongPromptFindsIt) {
  Run(1, 30, 9);
  DecodeRequest second = Request(1, 30, 9);
  second.sequence = {1, 2};
  second.prefill = 0;
  Open(2, std::move(second));
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  EXPECT_EQ(node_.counters().joined, 1);
  FinishStep();
  const StepRow& row = runner_.plans.back()->rows[0];
  EXPECT_EQ(row.context_len, 28);
  ExpectFrom(row.block_table, 0, 4);
}

TEST_F(DecodeGroupsTest, ToComputeAPromptItselfItStartsAtItsBeginning) {
  Open(1, Request(1, 30));
  EndTransfer(1, absl::UnavailableError("connection lost"));
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 2, .prefill = 0}});
  ASSERT_EQ(runner_.plans.size(), 1u);
  const StepRow& row = runner_.plans[0]->rows[0];
  EXPECT_EQ(row.context_len, 0);
  EXPECT_THAT(row.block_table, Each(Ge(0)));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(30, 55)));
  EXPECT_EQ(NumHeld(), 8 + 5);
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
}

TEST_F(DecodeGroupsTest, AReservationThatIsBoundAgainKeepsItsPlaces) {
  Open(1, Request(1, 30));
  EndTransfer(1, absl::UnavailableError("connection lost"));
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 2, .prefill = 67}});
  ASSERT_EQ(transport_.expected.size(), 2u);
  const std::vector<BlockRef>& before = transport_.expected[0].blocks;
  const std::vector<BlockRef>& after = transport_.expected[1].blocks;
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].block, before[i].block);
    EXPECT_EQ(after[i].epoch > before[i].epoch, before[i].block >= 0);
  }
}

TEST_F(DecodeGroupsTest, ASequenceMustFitWithNothingPassed) {
  Open(1, Request(1, 38, 4));
  EXPECT_EQ(outbox_.Closed(1), absl::StatusCode::kInvalidArgument);
  Open(2, Request(2, 37, 4));
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
}

}  // namespace
}  // namespace baton
