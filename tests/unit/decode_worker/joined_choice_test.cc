// A call without a prefill worker goes on with the K/V of its prompt's full blocks, which is here.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Code = absl::StatusCode;

class JoinedChoiceTest : public DecodeNodeHarness {
 protected:
  explicit JoinedChoiceTest(int32_t window = 0) : DecodeNodeHarness(window) {}
  explicit JoinedChoiceTest(const EngineOptions& engine)
      : DecodeNodeHarness(SmallModel(/*window=*/0), engine) {}
  // Another choice of call 1's prompt.
  void Join(CallId call, int32_t length) {
    DecodeRequest request = Request(1, length, 8);
    request.sequence = {1, call};
    request.prefill = 0;
    Open(call, std::move(request));
  }
  // Both want more blocks than there are.
  void RunBothUntilOneIsPreempted() {
    Run(1, 10, 25);
    DecodeRequest request = Request(1, 10, 25);
    request.sequence = {1, 2};
    request.prefill = 0;
    Open(2, std::move(request));
    for (int step = 0; step < 25 && node_.Status().preempted == 0; ++step) FinishStep();
    ASSERT_EQ(node_.Status().preempted, 1);
    EXPECT_EQ(outbox_.Closed(1), std::nullopt);
  }
  // Of the step in flight.
  const StepRow* RowOf(uint64_t counter) const {
    for (const StepRow& row : runner_.plans.back()->rows) {
      if (row.sequence.counter == counter) return &row;
    }
    return nullptr;
  }
  void RunToTheEnd() {
    for (int step = 0; step < 60 && !node_.idle(); ++step) FinishStep();
    for (const CallId call : {1, 2}) {
      EXPECT_EQ(outbox_.Closed(call), Code::kOk);
      EXPECT_EQ(Tokens(call).size(), 25u);
    }
    EXPECT_EQ(pool_.num_available(), pool_.num_blocks());
  }
  // The rest of an answer, of which these tokens are known, in a call of its own.
  void Return(CallId call, const std::vector<int32_t>& emitted, uint64_t of = 1,
              int32_t length = 9) {
    DecodeRequest request = Request(of, length, 20);
    request.attempt = 2;
    request.prefill = 0;
    request.tokens.insert(request.tokens.end(), emitted.begin(), emitted.end());
    Open(call, std::move(request));
  }
};

class ReturnsInFewRowsTest : public JoinedChoiceTest {
 protected:
  ReturnsInFewRowsTest() : JoinedChoiceTest({.chunk_tokens = 16, .max_batch_sequences = 4}) {}
};

class JoinedChoiceWithSwapTest : public JoinedChoiceTest {
 protected:
  JoinedChoiceWithSwapTest() : JoinedChoiceTest({.chunk_tokens = 8, .swap_blocks = 16}) {}
};

class JoinedChoiceInAWindowTest : public JoinedChoiceTest {
 protected:
  JoinedChoiceInAWindowTest() : JoinedChoiceTest(/*window=*/10) {}
};

TEST_F(JoinedChoiceTest, SharesTheFullBlocksCopiesTheOneBehindThemAndComputesItsLastToken) {
  Run(1, 10);
  Join(2, 10);
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  EXPECT_TRUE(outbox_.Events<ReservedEvent>(2).empty());
  ASSERT_EQ(outbox_.Events<TokensEvent>(2).size(), 1u);
  EXPECT_TRUE(outbox_.Events<TokensEvent>(2)[0].outputs.empty());
  EXPECT_EQ(outbox_.Events<TokensEvent>(2)[0].cached_tokens, 0) << "it computes no prompt";
  EXPECT_EQ(transport_.expected.size(), 1u);
  EXPECT_EQ(pool_.num_blocks() - pool_.num_available(), 4);  // 3, and one for the tail.
  FinishStep();
  const StepPlan& plan = *runner_.plans[1];
  ASSERT_EQ(plan.rows.size(), 2u);
  const StepRow& row = plan.rows[0];
  EXPECT_EQ(row.context_len, 9);
  EXPECT_THAT(row.tokens, ElementsAre(1009));
  const auto first = runner_.plans[0]->rows[0].block_table;
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].source, first[2]);
  EXPECT_EQ(plan.copies[0].destination, row.block_table[2]);
  EXPECT_EQ(row.block_table[0], first[0]);
  EXPECT_EQ(row.block_table[1], first[1]);
  EXPECT_NE(row.block_table[2], first[2]);
  FinishStep(56);
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(10, 56)));
  EXPECT_EQ(node_.counters().joined, 1);
  EXPECT_EQ(node_.counters().handoffs, 1);
}

TEST_F(JoinedChoiceTest, AtABlocksEndThatBlockIsCopiedForItsLastToken) {
  Run(1, 8);
  Join(2, 8);
  FinishStep();
  const StepPlan& plan = *runner_.plans[1];
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_THAT(plan.rows[0].tokens, ElementsAre(1007));
  EXPECT_EQ(plan.copies.size(), 1u);
}

TEST_F(JoinedChoiceTest, ItsSessionMayEndAmidTheStepThatCopies) {
  Run(1, 10);
  Join(2, 10);
  FinishStep();
  Handle(CallBroken{.call = 2, .session_ended = true});
  EXPECT_EQ(node_.counters().parked, 0) << "until then its block is not what it says";
  FinishStep();
  Handle(CallBroken{1});
  FinishStep();
  EXPECT_TRUE(node_.idle());
}

TEST_F(JoinedChoiceTest, IsRefusedWhereMoreThanABlockIsMissing) {
  Join(2, 10);
  EXPECT_EQ(outbox_.Closed(2), Code::kFailedPrecondition);
  EXPECT_EQ(node_.counters().joined, 0);
  EXPECT_EQ(pool_.counts().free, 10);
  EXPECT_TRUE(node_.idle());
}

TEST_F(JoinedChoiceTest, AnotherTenantsPromptIsNotHere) {
  Run(1, 10);
  DecodeRequest request = Request(1, 10);
  request.sequence = {1, 2};
  request.prefill = 0;
  request.tenant = "other";
  Open(2, std::move(request));
  EXPECT_EQ(outbox_.Closed(2), Code::kFailedPrecondition);
}

TEST_F(JoinedChoiceTest, OutlivesTheFirst) {
  Run(1, 10);
  Join(2, 10);
  Handle(CallBroken{1});
  FinishStep();
  EXPECT_THAT(runner_.plans[1]->rows[0].tokens, ElementsAre(1008, 1009)) << "nobody has them";
  EXPECT_TRUE(runner_.plans[1]->copies.empty());
  FinishStep(56);
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(10, 56)));
  EXPECT_EQ(pool_.num_blocks() - pool_.num_available(), 3);
}

// ---- An answer whose session ended returns -----------------------------------------------------

TEST_F(JoinedChoiceTest, TheFirstMayBeCancelledAmidAStepOfBoth) {
  Run(1, 10);
  Join(2, 10);
  FinishStep();
  Handle(CallBroken{1});
  FinishStep(56);
  FinishStep(57);
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(10, 56), Pair(11, 57)));
  Handle(CallBroken{2});
  FinishStep();
  EXPECT_TRUE(node_.idle());
}

TEST_F(JoinedChoiceTest, APreemptedOneFindsThePromptThatTheFirstHolds) {
  RunBothUntilOneIsPreempted();
  // The younger: of its blocks those of the prompt are the first one's too.
  for (int step = 0; step < 30 && node_.Status().preempted > 0; ++step) FinishStep();
  const StepRow* row = RowOf(2);
  ASSERT_NE(row, nullptr);
  EXPECT_GE(row->context_len, 8);
  RunToTheEnd();
}

TEST_F(JoinedChoiceWithSwapTest, ASwappedOneComesBackWithAllThatItHeld) {
  RunBothUntilOneIsPreempted();
  const int32_t length = 10 + static_cast<int32_t>(Tokens(2).size());
  for (int step = 0; step < 30 && node_.Status().preempted > 0; ++step) FinishStep();
  const StepRow* row = RowOf(2);
  ASSERT_NE(row, nullptr);
  EXPECT_GE(row->context_len, length - 1);
  RunToTheEnd();
}

TEST_F(JoinedChoiceTest, AnAnswerReturnsAmidAStepToAllThatIsFull) {
  Run(1, 9);
  for (int i = 0; i < 3; ++i) FinishStep();  // Twelve tokens are computed, the next one is.
  Handle(CallBroken{1});
  Return(2, {50, 55, 55, 55});
  EXPECT_EQ(outbox_.Closed(2), std::nullopt);
  FinishStep();
  ASSERT_EQ(runner_.plans.back()->rows.size(), 1u);
  const StepRow& row = runner_.plans.back()->rows[0];
  EXPECT_EQ(row.context_len, 12);
  EXPECT_EQ(row.tokens.size(), 1u);
}

TEST_F(JoinedChoiceTest, AnAnswerThatReturnsLeavesNoMoreRoomThanItHad) {
  Run(1, 16);
  Run(2, 12);
  FinishStep();
  Handle(CallBroken{1});
  FinishStep();
  // Ten blocks: the second has four, and the first's are kept but for the one that it fills.
  Open(3, Request(3, 4));
  ASSERT_EQ(pool_.num_available(), 5);
  Return(4, {50, 55}, /*of=*/1, /*length=*/16);
  EXPECT_EQ(outbox_.Closed(4), std::nullopt);
  EXPECT_EQ(pool_.num_available(), 0);
}

TEST_F(JoinedChoiceTest, AnAnswerThatReturnsBeforeItsFirstTokenLeavesNoMoreRoomEither) {
  Run(1, 16);
  Run(2, 12);
  FinishStep();
  Handle(CallBroken{1});
  FinishStep();
  Open(3, Request(3, 8));
  ASSERT_EQ(pool_.num_available(), 4);
  Return(4, {}, /*of=*/1, /*length=*/16);
  EXPECT_EQ(outbox_.Closed(4), std::nullopt);
  EXPECT_EQ(node_.counters().returned, 1);
  EXPECT_EQ(node_.counters().joined, 0);
}

TEST_F(JoinedChoiceTest, AnAnswerWhoseBlocksAreGoneDoesNotReturn) {
  Run(1, 9);
  Handle(CallBroken{1});
  FinishStep();
  Open(2, Request(2, 40, 1));  // Takes them all.
  Return(3, {50});
  EXPECT_EQ(outbox_.Closed(3), Code::kFailedPrecondition);
}

TEST_F(ReturnsInFewRowsTest, TheirEndsGetThreeQuartersOfAStepBesideAnswers) {
  for (const CallId call : {4, 5, 6}) Run(call, 1);
  for (const CallId call : {1, 2}) Run(call, 4);
  for (int i = 0; i < 2; ++i) FinishStep();
  for (const CallId call : {1, 2}) Handle(CallBroken{call});
  for (const CallId call : {1, 2}) Return(10 + call, {50, 55}, /*of=*/call, /*length=*/4);
  FinishStep();
  const StepPlan& plan = *runner_.plans.back();
  std::vector<size_t> tokens;
  for (const StepRow& row : plan.rows) tokens.push_back(row.tokens.size());
  EXPECT_THAT(tokens, ElementsAre(2, 2, 1, 1));
}

TEST_F(JoinedChoiceInAWindowTest, KeepsWhatTheFirstOfItsTokensSees) {
  Run(1, 9);
  for (int i = 0; i < 3; ++i) FinishStep();  // Three full blocks, found from the start on.
  Handle(CallBroken{1});
  FinishStep();
  DecodeRequest request = Request(1, 9, 8);
  request.sequence = {1, 2};
  request.tokens.insert(request.tokens.end(), {50, 55, 55, 55});
  request.prompt_length = 13;
  request.prefill = 0;
  Open(2, std::move(request));
  ASSERT_EQ(outbox_.Closed(2), std::nullopt);
  const StepRow& row = runner_.plans.back()->rows[0];
  EXPECT_EQ(row.context_len, 12);
  EXPECT_GE(row.block_table[0], 0);  // The token at 12 sees those from 3 on, the one behind it not.
}

TEST_F(JoinedChoiceInAWindowTest, WhereTheHandoffBeganBehindTheStartThePromptIsNotHere) {
  Run(1, 30, 8);
  Join(2, 30);
  EXPECT_EQ(outbox_.Closed(2), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace baton
