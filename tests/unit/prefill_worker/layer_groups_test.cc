// A prefill worker of a model with two groups of layers: layer 0 sees all tokens, layer 1 a window
// of 10, beside which 4 more are kept. Of 32 tokens those from 19 on are handed over of layer 1.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/prefill_worker/prefill_node_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;

class PrefillGroupsTest : public PrefillNodeHarness {
 protected:
  PrefillGroupsTest() : PrefillNodeHarness(GroupedModel(/*window=*/10, /*spare=*/4)) {}
  int32_t NumHeld() const { return pool_.num_blocks() - pool_.num_available(); }
  // Of 8 entries, those of the second group that the transfer reads.
  static void ExpectReadable(const StartArgs& start) {
    ASSERT_EQ(start.blocks.size(), 16u);
    for (int32_t i = 0; i < 8; ++i) EXPECT_GE(start.blocks[i], 0) << i;
    for (int32_t i = 4; i < 8; ++i) EXPECT_GE(start.blocks[8 + i], 0) << i;
  }
};

TEST_F(PrefillGroupsTest, SendsOfEachLayerWhatTheDecodeWorkerWillSee) {
  Open(1, Request(1, 32));
  EXPECT_EQ(transport_.started[0].first_token, 0);
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  EXPECT_THAT(Pushed(),
              ElementsAre(std::tuple(0, 0, 8), std::tuple(0, 8, 8), std::tuple(0, 16, 8),
                          std::tuple(1, 19, 5), std::tuple(0, 24, 8), std::tuple(1, 24, 8)));
}

TEST_F(PrefillGroupsTest, GivesBlocksOfTheWindowBackBetweenChunksButNoneThatTheTransferReads) {
  Open(1, Request(1, 32));
  const StartArgs start = transport_.started[0];
  for (const int32_t held : {16, 16, 14, 12}) {
    FinishStep();
    EXPECT_EQ(NumHeld(), held);
    for (int32_t i = 0; i < 16; ++i) {
      if (i >= 8 && i < 8 + 4) continue;
      EXPECT_NE(pool_.state(start.blocks[i]), BlockState::kFree) << i;
      EXPECT_NE(pool_.state(start.blocks[i]), BlockState::kCached) << i;
    }
  }
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
  TransferEnds(1);
  EXPECT_EQ(NumHeld(), 0);
}

// From 28 tokens on a query sees from 19 on, but the transfer reads what is kept beyond that too.
TEST_F(PrefillGroupsTest, ACachedPrefixIsHeldAsFarAsTheTransferReadsIt) {
  Open(1, Request(1, 32, /*handoff=*/false));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  ASSERT_EQ(NumHeld(), 0);
  PrefillRequest again = Request(1, 32);
  again.attempt = 2;
  Open(2, std::move(again));
  EXPECT_EQ(node_.counters().cached_tokens, 28);
  ExpectReadable(transport_.started[0]);
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 0, 28), std::tuple(1, 19, 9)));
}

TEST_F(PrefillGroupsTest, KeptKvGoesToAnotherTargetThatHasLessOfIt) {
  PrefillRequest request = Request(1, 32);
  request.handoff->first_token = 28;
  Open(1, std::move(request));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 28, 4), std::tuple(1, 28, 4)));
  TransferEnds(1, absl::DataLossError("checksum"));
  transport_.pushed.clear();
  Handle(SendAsked{
      {.sequence = {1, 1},
       .attempt = 2,
       .handoff = {.ticket = {9, 50}, .ranks = {{"d:2", {0, 4}}}, .pair_key = {8}, .decode = 78}}});
  ExpectReadable(transport_.started.back());
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 0, 32), std::tuple(1, 19, 13)));
}

}  // namespace
}  // namespace baton
