// A prefill worker of a model with a sliding window of 10 tokens: of 32 tokens the next query sees
// those from 23 on.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/prefill_worker/prefill_node_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Code = absl::StatusCode;

class PrefillWindowTest : public PrefillNodeHarness {
 protected:
  PrefillWindowTest() : PrefillNodeHarness(/*window=*/10) {}
  int32_t NumHeld() const { return pool_.num_blocks() - pool_.num_available(); }
};

TEST_F(PrefillWindowTest, SendsOnlyWhatTheDecodeWorkerWillSee) {
  Open(1, Request(1, 32));  // The target asks for everything.
  EXPECT_EQ(transport_.started[0].first_token, 23);
  FinishStep();
  FinishStep();
  EXPECT_THAT(Pushed(), IsEmpty());
  FinishStep();
  FinishStep();
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 23, 1), std::tuple(1, 23, 1),
                                    std::tuple(0, 24, 8), std::tuple(1, 24, 8)));
  ASSERT_EQ(transport_.finished.size(), 1u);
}

TEST_F(PrefillWindowTest, SendsLessWhenTheDecodeWorkerHasSomeOfIt) {
  PrefillRequest request = Request(1, 32);
  request.handoff->first_token = 28;
  Open(1, std::move(request));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  EXPECT_EQ(transport_.started[0].first_token, 28);
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 28, 4), std::tuple(1, 28, 4)));
}

TEST_F(PrefillWindowTest, GivesBlocksBackBetweenChunksButNoneThatTheTransferReads) {
  Open(1, Request(1, 32));
  const StartArgs start = transport_.started[0];
  for (const int32_t held : {8, 7, 5, 3}) {
    FinishStep();
    EXPECT_EQ(NumHeld(), held);
    for (int32_t b = start.first_token / 4; b < 8; ++b) {
      EXPECT_NE(pool_.state(start.blocks[b]), BlockState::kFree);
      EXPECT_NE(pool_.state(start.blocks[b]), BlockState::kCached);
    }
  }
  EXPECT_EQ(node_.Audit(now_).calls[0].num_blocks, 3);
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
  TransferEnds(1);
  EXPECT_EQ(NumHeld(), 0);
  EXPECT_TRUE(node_.idle());
}

TEST_F(PrefillWindowTest, ACancelWhileTheTransferRunsHoldsWhatItReads) {
  Open(1, Request(1, 32));
  for (int32_t i = 0; i < 3; ++i) FinishStep();
  Handle(CallBroken{1});
  EXPECT_EQ(NumHeld(), 5);
  EXPECT_EQ(pool_.counts().draining, 2);  // What is sealed stays findable.
  FinishStep();
  EXPECT_EQ(NumHeld(), 5);
  TransferEnds(1, absl::CancelledError(""));
  EXPECT_EQ(NumHeld(), 0);
}

TEST_F(PrefillWindowTest, KeptKvGoesToAnotherTargetAsFarAsItIsSeen) {
  Open(1, Request(1, 32));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  TransferEnds(1, absl::DataLossError("checksum"));
  transport_.pushed.clear();
  Handle(SendAsked{
      {.sequence = {1, 1},
       .attempt = 2,
       .handoff = {.ticket = {9, 50}, .ranks = {{"d:2", {0, 4}}}, .pair_key = {8}, .decode = 78}}});
  ASSERT_EQ(transport_.started.size(), 2u);
  const StartArgs& start = transport_.started[1];
  EXPECT_EQ(start.first_token, 23);
  for (int32_t b = 0; b < 8; ++b) EXPECT_EQ(start.blocks[b] >= 0, b >= 5) << b;
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 23, 9), std::tuple(1, 23, 9)));
  TransferEnds(50);
  EXPECT_EQ(outbox_.Closed(1), Code::kOk);
}

TEST_F(PrefillWindowTest, APromptIsFoundAgainAlthoughItsStartWasGivenBack) {
  Open(1, Request(1, 32, /*handoff=*/false));
  for (int32_t i = 0; i < 4; ++i) FinishStep();
  ASSERT_EQ(NumHeld(), 0);
  PrefillRequest again = Request(1, 32);
  again.attempt = 2;
  Open(2, std::move(again));
  EXPECT_EQ(node_.counters().cached_tokens, 28);
  EXPECT_THAT(Pushed(), ElementsAre(std::tuple(0, 23, 5), std::tuple(1, 23, 5)));
  EXPECT_EQ(runner_.plans.back()->rows[0].context_len, 28);
  EXPECT_EQ(NumHeld(), 4);  // The query at 28 sees 19 and later ones.
}

}  // namespace
}  // namespace baton
