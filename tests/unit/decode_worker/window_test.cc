// A decode worker of a model with a sliding window of 10 tokens: of 30 tokens the next query sees
// those from 21 on.

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

class DecodeWindowTest : public DecodeNodeHarness {
 protected:
  DecodeWindowTest() : DecodeNodeHarness(/*window=*/10) {}
  int32_t NumHeld() const { return pool_.num_blocks() - pool_.num_available(); }
};

TEST_F(DecodeWindowTest, ReservesAndAsksForWhatItWillSee) {
  Open(1, Request(1, 30));
  const ExpectArgs& expect = transport_.expected[0];
  EXPECT_EQ(expect.first_token, 21);
  EXPECT_EQ(expect.num_tokens, 30);
  ASSERT_EQ(expect.blocks.size(), 8u);
  for (int32_t b = 0; b < 8; ++b) EXPECT_EQ(expect.blocks[b].block >= 0, b >= 5) << b;
  EXPECT_EQ(outbox_.Events<ReservedEvent>(1)[0].cached_tokens, 21);
  EXPECT_EQ(pool_.counts().reserved, 3);
  EXPECT_EQ(node_.counters().cached_tokens, 0);
  EXPECT_EQ(node_.Audit(now_).calls[0].num_blocks, 3);
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
}

TEST_F(DecodeWindowTest, GoesOnBehindAPartialHandoff) {
  Run(1, 30, 8);
  const StepRow& row = runner_.plans[0]->rows[0];
  EXPECT_EQ(row.context_len, 30);
  for (int32_t b = 0; b < 8; ++b) EXPECT_EQ(row.block_table[b] >= 0, b >= 5) << b;
  FinishStep();
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(30, 50), Pair(31, 55)));
}

TEST_F(DecodeWindowTest, TheStartOfAPromptThatWasNeverHereIsNotFoundHere) {
  Run(1, 30, 8);
  Handle(CallBroken{1});
  FinishStep();
  ASSERT_TRUE(node_.idle());
  EXPECT_EQ(pool_.counts().free, 10);
  Open(2, Request(1, 30));
  EXPECT_EQ(transport_.expected.back().first_token, 21);
}

TEST_F(DecodeWindowTest, ACachedPrefixCountsOnlyIfItReachesTheWindow) {
  Run(1, 9, 4);
  Handle(CallBroken{1});
  FinishStep();
  ASSERT_EQ(pool_.counts().cached, 2);
  DecodeRequest reaching = Request(1, 16);  // Sees from 7 on; 8 are cached.
  reaching.attempt = 2;
  Open(2, std::move(reaching));
  EXPECT_EQ(transport_.expected.back().first_token, 8);
  EXPECT_EQ(NumHeld(), 3);  // Block 1 is pinned, 2 and 3 are reserved.
  EXPECT_EQ(node_.counters().cached_tokens, 4);
  Handle(CallBroken{2});
  EndTransfer(2, absl::CancelledError(""));
  DecodeRequest beyond = Request(1, 18);  // Sees from 9 on.
  beyond.attempt = 3;
  Open(3, std::move(beyond));
  EXPECT_EQ(transport_.expected.back().first_token, 9);
  EXPECT_EQ(pool_.counts().reserved, 3);
  EXPECT_EQ(pool_.counts().ready, 0);
}

TEST_F(DecodeWindowTest, ALongAnswerHoldsTheWindowsBlocks) {
  Run(1, 6, 30);
  int32_t peak = 0;
  for (int32_t i = 0; i < 28; ++i) {
    FinishStep();
    peak = std::max(peak, NumHeld());
  }
  EXPECT_EQ(Tokens(1).size(), 29u);
  EXPECT_LE(peak, 4);
  FinishStep();
  EXPECT_EQ(NumHeld(), 0);
}

TEST_F(DecodeWindowTest, ManyLongAnswersFitWhereOneWouldNot) {
  // 10 blocks; without a window each would take 8.
  Run(1, 30, 4);
  Run(2, 30, 4);
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  EXPECT_EQ(node_.Status().running, 2);
}

TEST_F(DecodeWindowTest, ToComputeAPromptItselfItStartsAtItsBeginning) {
  Open(1, Request(1, 30));
  EndTransfer(1, absl::UnavailableError("connection lost"));
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 2, .prefill = 0}});
  ASSERT_EQ(runner_.plans.size(), 1u);
  const StepRow& row = runner_.plans[0]->rows[0];
  EXPECT_EQ(row.context_len, 0);
  EXPECT_THAT(row.block_table, Each(Ge(0)));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(30, 55)));
  EXPECT_LE(NumHeld(), 4);
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
}

// The window of the query at 11 begins within the first block.
TEST_F(DecodeWindowTest, AFirstBlockWithoutItsFirstTokensIsNeitherFoundNorComputedFrom) {
  Run(1, 11, 4);
  EXPECT_EQ(transport_.expected[0].first_token, 2);
  Handle(CallBroken{1});
  FinishStep();
  EXPECT_EQ(pool_.counts().free, 10);
  DecodeRequest again = Request(1, 11);
  again.attempt = 2;
  Open(2, std::move(again));
  EXPECT_EQ(transport_.expected[1].first_token, 2);
  EndTransfer(2, absl::UnavailableError("connection lost"));
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 3, .prefill = 0}});
  EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 0);
}

TEST_F(DecodeWindowTest, AReservationThatIsBoundAgainKeepsItsPlaces) {
  Open(1, Request(1, 30));
  EndTransfer(1, absl::UnavailableError("connection lost"));
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 2, .prefill = 67}});
  ASSERT_EQ(transport_.expected.size(), 2u);
  EXPECT_EQ(transport_.expected[1].first_token, 21);
  for (int32_t b = 0; b < 8; ++b) {
    EXPECT_EQ(transport_.expected[1].blocks[b].block, transport_.expected[0].blocks[b].block);
    EXPECT_EQ(
        transport_.expected[1].blocks[b].epoch > transport_.expected[0].blocks[b].epoch,
        b >= 5);
  }
  EndTransfer(1, absl::OkStatus(), {.position = 30, .token = 50});
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(30, 50)));
}

}  // namespace
}  // namespace baton
