// Further choices of a prompt go on with the first one's K/V, where that is.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Code = absl::StatusCode;

class ChoicesTest : public RecoveryHarness {
 protected:
  static ValidRequest Choices(int32_t n, int32_t max_tokens = 4) {
    ValidRequest request = Request(3, max_tokens);
    request.num_choices = n;
    return request;
  }
  // The first of three choices has two tokens, the others are asked for where it is.
  void ToJoining() {
    ToDecoding(1, Choices(3));
    ASSERT_EQ(outbox_.decodes.size(), 3u);
    second_ = outbox_.decodes[1].call;
    third_ = outbox_.decodes[2].call;
  }
  CallId second_ = 0;
  CallId third_ = 0;
};

TEST_F(ChoicesTest, WaitForTheFirstAndGoWhereItIsWithoutAPrefillWorker) {
  Submit(1, Choices(3));
  Reserved(decode_call());
  Prefilled(prefill_call(), 3, 50);
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  const int32_t worker = outbox_.decodes[0].worker;
  Tokens(outbox_.decodes[0].call, 3, 50);
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(outbox_.decodes[i].worker, worker);
    EXPECT_EQ(outbox_.decode_requests[i].prefill, 0u);
    EXPECT_EQ(outbox_.decode_requests[i].sampling.choice, i);
    Ready(outbox_.decodes[i].call, 1);
    Tokens(outbox_.decodes[i].call, 3, static_cast<int32_t>(60 + i), FinishReason::kStop);
    EXPECT_THAT(Seen(1, static_cast<int32_t>(i)), ElementsAre(60 + i));
  }
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_EQ(node_->counters().joins, 2);
  Tokens(outbox_.decodes[0].call, 4, 51, FinishReason::kStop);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_TRUE(node_->idle());
}

TEST_F(ChoicesTest, ARefusedOneGoesForItselfAndThatWorkerIsLeftAloneForAMoment) {
  ToJoining();
  const int32_t worker = outbox_.decodes[0].worker;
  Closed(second_, absl::ResourceExhaustedError("not here"));
  ASSERT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_NE(outbox_.decodes[3].worker, worker);
  EXPECT_NE(outbox_.decode_requests[3].prefill, 0u);
  EXPECT_EQ(outbox_.decode_requests[3].sampling.choice, 1u);
  EXPECT_EQ(outbox_.decode_requests[3].attempt, 2u);
}

TEST_F(ChoicesTest, AWorkerThatDoesNotKnowOfThemEndsNothing) {
  ToJoining();
  Closed(second_, absl::InvalidArgumentError("prefill_incarnation = 0"));
  EXPECT_EQ(Ended(1), std::nullopt);
  ASSERT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_NE(outbox_.decode_requests[3].prefill, 0u);
}

TEST_F(ChoicesTest, AReservationThatNobodyIsToFillIsALossOfTheWorker) {
  ToJoining();
  Reserved(second_);
  EXPECT_EQ(outbox_.prefills.size(), 1u);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(second_));
  EXPECT_EQ(Ended(1), std::nullopt);
}

TEST_F(ChoicesTest, AreAskedForAnewWhenTheirWorkerIsLost) {
  ToJoining();
  const int32_t worker = outbox_.decodes[0].worker;
  Ready(second_, 1);
  Tokens(second_, 3, 60);
  Kill(worker, {outbox_.decodes[0].call, second_, third_});
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 6u);
  for (size_t i = 3; i < 6; ++i) {
    EXPECT_NE(outbox_.decodes[i].worker, worker);
    EXPECT_NE(outbox_.decode_requests[i].prefill, 0u);
  }
  EXPECT_EQ(Ended(1), std::nullopt);
}

TEST_F(ChoicesTest, GoForThemselvesWhenTheFirstEndsBeforeItDecodes) {
  Submit(1, Choices(3));
  Reserved(decode_call());
  Handle(ClientStop{.request = 1, .choice = 0});
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  for (size_t i = 1; i < 3; ++i) EXPECT_NE(outbox_.decode_requests[i].prefill, 0u);
  EXPECT_EQ(node_->counters().joins, 0);
}

TEST_F(ChoicesTest, GoForThemselvesWhenTheFirstOnesWorkerDrains) {
  Submit(1, Choices(2));
  Reserved(decode_call());
  const int32_t worker = outbox_.decodes[0].worker;
  Handle(WorkerStatusChanged{worker, {.incarnation = incarnation(worker), .draining = true}});
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 3, 50);
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_NE(outbox_.decodes[1].worker, worker);
  EXPECT_NE(outbox_.decode_requests[1].prefill, 0u);
}

TEST_F(ChoicesTest, WaitOnWhileTheFirstMovesToAnotherPair) {
  Submit(1, Choices(2));
  Reserved(decode_call());
  const int32_t worker = outbox_.decodes[0].worker;
  Kill(worker, {decode_call()});
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decode_requests[1].sampling.choice, 0u);
  Reserved(outbox_.decodes[1].call, 2);
  Tokens(outbox_.decodes[1].call, 3, 50, FinishReason::kNone, 2);
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(outbox_.decode_requests[2].sampling.choice, 1u);
  EXPECT_EQ(outbox_.decodes[2].worker, outbox_.decodes[1].worker);
  EXPECT_EQ(outbox_.decode_requests[2].prefill, 0u);
}

TEST_F(ChoicesTest, ARefusedOneClaimsNoRoom) {
  ToDecoding(1, Choices(2));
  const int32_t worker = outbox_.decodes[0].worker;
  const int32_t other = 3 - worker;
  Handle(WorkerStatusChanged{other, {.incarnation = incarnation(other), .draining = true}});
  Closed(decode_call(), absl::ResourceExhaustedError("not here"));
  Submit(2, Request());
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Wait(std::chrono::milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 4u) << "who came later goes too";
  for (size_t i = 2; i < 4; ++i) EXPECT_EQ(outbox_.decodes[i].worker, worker);
}

TEST_F(ChoicesTest, DoNotTakeTheRoomThatTheirWorkerIsKeptFor) {
  Handle(WorkerDown{.worker = 1, .reason = "not yet"});
  Submit(5, Request(100));
  const CallId large = decode_call();
  Submit(1, Choices(2));
  const CallId first = decode_call();
  Up(1, incarnation(1));
  Closed(large, absl::ResourceExhaustedError("no blocks are free"));
  ASSERT_EQ(outbox_.decodes.back().worker, 1) << "the other waits for its answer";
  Heard(2);
  Reserved(first);
  Prefilled(prefill_call(), 3, 50);
  Tokens(first, 3, 50);
  ASSERT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
  EXPECT_NE(last_decode().prefill, 0u);
  EXPECT_EQ(node_->counters().joins, 0);
}

TEST_F(ChoicesTest, DoNotOvertakeAnAnswerThatLacksADecodeWorker) {
  Up(1, incarnation(1), /*max_model_len=*/50);
  Submit(5, Request(100, 50));  // For worker 2 alone.
  Reserved(decode_call());
  Prefilled(prefill_call(), 100, 50);
  const CallId large = decode_call();
  Tokens(large, 100, 50);
  Closed(prefill_call());
  Submit(1, Choices(2));
  ASSERT_EQ(outbox_.decodes.back().worker, 1);
  const CallId first = decode_call();
  Reserved(first);
  Prefilled(prefill_call(), 3, 50);
  Closed(large, absl::InternalError("the step failed"));
  Judged();
  Tokens(first, 3, 50);
  EXPECT_EQ(outbox_.decodes.size(), 2u) << "worker 2 is left alone for a moment";
  EXPECT_EQ(node_->counters().joins, 0);
  Wait(std::chrono::milliseconds(20));
  EXPECT_EQ(outbox_.decodes.size(), 4u);
  EXPECT_EQ(node_->counters().joins, 1);
}

TEST_F(ChoicesTest, GoOnWithTheBitsOfTheFirstWhenTheyAreLost) {
  for (const int32_t worker : {2, 3}) {
    Handle(WorkerUp{worker, {.role = roles_[worker],
                             .incarnation = incarnation(worker),
                             .numerics_id = "other",
                             .block_size = 16,
                             .num_blocks = 100,
                             .max_model_len = 200}});
  }
  ToDecoding(1, Choices(2));
  ASSERT_EQ(outbox_.decodes[1].worker, 1);
  const CallId second = decode_call();
  Ready(second, 1);
  Tokens(second, 3, 60);
  Kill(1, {outbox_.decodes[0].call, second});
  Judged();
  EXPECT_EQ(outbox_.decodes.size(), 2u) << "worker 2 would compute others";
  Up(1, 500);
  EXPECT_EQ(outbox_.decodes.size(), 4u);
}

TEST_F(ChoicesTest, CountAsTheirAnswersWhereTheyJoin) {
  ValidRequest request = Choices(2, 20);
  request.prompts[0].assign(100, 7);
  Submit(1, request);
  ASSERT_EQ(outbox_.decodes.back().worker, 1);
  const CallId first = decode_call();
  Submit(2, Request(150, 50));
  ASSERT_EQ(outbox_.decodes.back().worker, 2);
  Reserved(first);
  Prefilled(prefill_call(), 100, 50);
  Tokens(first, 100, 50);
  ASSERT_EQ(outbox_.decodes.back().worker, 1) << "120 tokens, and 20 more";
  Submit(3, Request());
  EXPECT_EQ(outbox_.decodes.back().worker, 1) << "the other has 200";
}

TEST_F(ChoicesTest, OfOneTokenEachWaitForNobody) {
  Submit(1, Choices(3, /*max_tokens=*/1));
  EXPECT_EQ(outbox_.prefills.size(), 3u);
  EXPECT_THAT(outbox_.decodes, IsEmpty());
}

}  // namespace
}  // namespace baton
