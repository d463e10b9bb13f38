// Which prompts of a prefill worker leave their last token for each other.
#include "gtest/gtest.h"
#include "prefill_worker/node.h"
#include "tests/unit/prefill_worker/prefill_node_harness.h"

namespace baton {
namespace {

class PrefillFinishTogetherTest : public PrefillNodeHarness {
 protected:
  PrefillFinishTogetherTest() : PrefillNodeHarness(/*window=*/0, /*finish_together=*/8) {}

  PrefillRequest Local(uint64_t id, int32_t length) {
    PrefillRequest request = Request(id, length);
    request.handoff->ranks[0].endpoint = "127.0.0.1:7001";
    return request;
  }
  void SendElsewhere(uint64_t id) {
    Handle(SendAsked{{.sequence = {1, id},
                      .attempt = 2,
                      .handoff = {.ticket = {9, 50},
                                  .ranks = {{"127.0.0.1:7002", {0, 4}}},
                                  .pair_key = {8},
                                  .decode = 78,
                                  .first_token = 0}}});
  }
  // Whether a prompt of 10 tokens has its first token before one of 12 behind it has: a step takes
  // 8 tokens.
  bool FirstIsAlone(PrefillRequest first) {
    Open(1, std::move(first));
    Open(2, Local(2, 12));
    FinishStep();
    FinishStep();
    EXPECT_EQ(node_.Status().running, outbox_.calls[1].events.empty() ? 2 : 1);
    const bool alone = !outbox_.calls[1].events.empty();
    FinishStep();
    EXPECT_EQ(node_.Status().running, 0);
    for (uint64_t id : {1, 2}) TransferEnds(id);
    return alone;
  }
};

TEST_F(PrefillFinishTogetherTest, PromptsForThisMachineWaitForEachOther) {
  EXPECT_FALSE(FirstIsAlone(Local(1, 10)));
}

TEST_F(PrefillFinishTogetherTest, LoopbackHasSeveralNames) {
  PrefillRequest request = Local(1, 10);
  request.handoff->ranks[0].endpoint = "[::1]:7001";
  EXPECT_FALSE(FirstIsAlone(std::move(request)));
}

TEST_F(PrefillFinishTogetherTest, APromptForAnotherMachineDoesNotWait) {
  PrefillRequest request = Local(1, 10);
  request.handoff->ranks[0].endpoint = "10.0.0.1:7001";
  EXPECT_TRUE(FirstIsAlone(std::move(request)));
}

TEST_F(PrefillFinishTogetherTest, APromptWithoutHandoffDoesNotWait) {
  EXPECT_TRUE(FirstIsAlone(Request(1, 10, /*handoff=*/false)));
}

TEST_F(PrefillFinishTogetherTest, AScoredPromptDoesNotWait) {
  PrefillRequest request = Local(1, 10);
  request.sampling.num_prompt_logprobs = 0;
  EXPECT_TRUE(FirstIsAlone(std::move(request)));
}

TEST_F(PrefillFinishTogetherTest, AnAnswerThatGoesOnAfterALossDoesNotWait) {
  PrefillRequest request = Local(1, 10);
  request.prompt_length = 9;
  EXPECT_TRUE(FirstIsAlone(std::move(request)));
}

TEST_F(PrefillFinishTogetherTest, HalfOfItsTimeIsForTheAnswer) {
  PrefillRequest request = Local(1, 10);
  request.timeout = std::chrono::seconds(4);
  Open(1, std::move(request));
  Open(2, Local(2, 32));
  FinishStep();
  FinishStep();
  EXPECT_TRUE(outbox_.calls[1].events.empty());
  now_ += std::chrono::seconds(2);
  FinishStep();  // Began before.
  FinishStep();
  EXPECT_FALSE(outbox_.calls[1].events.empty());
  Handle(CallBroken{2});
  FinishStep();
  for (uint64_t id : {1, 2}) TransferEnds(id);
}

// ---- What it waited for is not its decode worker any more --------------------------------------

TEST_F(PrefillFinishTogetherTest, APromptThatIsSentToAnotherWorkerWaitsNoLonger) {
  Open(1, Local(1, 10));
  Open(2, Local(2, 32));
  FinishStep();
  FinishStep();
  EXPECT_TRUE(outbox_.calls[1].events.empty());
  SendElsewhere(1);
  FinishStep();  // Began before.
  FinishStep();
  EXPECT_FALSE(outbox_.calls[1].events.empty());
}

TEST_F(PrefillFinishTogetherTest, NorDoesOneThatIsSentToAnotherBeforeItHasBlocks) {
  Open(2, Local(2, 32));
  Open(1, Local(1, 20));
  Open(3, Local(3, 24));
  EXPECT_EQ(node_.Status().waiting, 2);
  SendElsewhere(1);
  Handle(CallBroken{2});
  FinishStep();
  TransferEnds(2, absl::CancelledError("aborted"));
  EXPECT_EQ(node_.Status().waiting, 0);
  for (int i = 0; i < 3; ++i) FinishStep();
  EXPECT_FALSE(outbox_.calls[1].events.empty());
}

}  // namespace
}  // namespace baton
