// Log probabilities of prompts from decode workers whose group has no prefill worker.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/router_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using Code = absl::StatusCode;

// Worker 0 prefills, 1 and 2 decode; none is up at first.
class AloneScoresTest : public RouterHarness {
 protected:
  void SetUp() override { Create({}, /*up=*/false); }
  void Come(int32_t worker, bool scores_prompts = true) {
    Handle(WorkerUp{.worker = worker,
                    .hello = {.role = roles_[worker],
                              .incarnation = kFirstIncarnation + worker,
                              .numerics_id = "a",
                              .block_size = 16,
                              .num_blocks = 100,
                              .max_model_len = 200,
                              .computes_prompts = worker > 0,
                              .scores_prompts = worker > 0 && scores_prompts}});
  }
  void Go(int32_t worker) {
    Handle(WorkerDown{.worker = worker, .reason = "gone", .is_gone = true});
  }
  void BeAlone() {
    Come(1);
    Wait(seconds(2));
  }
  static ValidRequest ToScore(bool score_only, int32_t length = 3) {
    ValidRequest request = Request(length);
    request.sampling.num_prompt_logprobs = 0;
    request.score_only = score_only;
    return request;
  }
  void Computes(CallId call, Attempt attempt = 1) {
    Handle(WorkerEventReceived{call, TokensEvent{.attempt = attempt, .outputs = {}}});
  }
  const DecodeRequest& last() const { return outbox_.decode_requests.back(); }
};

TEST_F(AloneScoresTest, ComeFromTheDecodeWorkerWithTheAnswer) {
  BeAlone();
  Submit(1, ToScore(false));
  EXPECT_TRUE(last().compute_prompt);
  EXPECT_FALSE(last().score_only);
  EXPECT_EQ(last().sampling.num_prompt_logprobs, 0);
  Computes(decode_call());
  Scores(decode_call(), 1, 3);
  for (int32_t i = 0; i < 4; ++i) {
    Tokens(decode_call(), 3 + i, 50 + i, i == 3 ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
  EXPECT_THAT(Seen(1), ElementsAre(50, 51, 52, 53));
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(AloneScoresTest, AloneEndTheRequest) {
  BeAlone();
  Submit(1, ToScore(true));
  EXPECT_TRUE(last().score_only);
  Computes(decode_call());
  Scores(decode_call(), 1, 2);
  EXPECT_EQ(Ended(1), std::nullopt);
  Scores(decode_call(), 2, 3);
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
}

TEST_F(AloneScoresTest, OfOneTokenAreNone) {
  BeAlone();
  Submit(1, ToScore(true, /*length=*/1));
  EXPECT_TRUE(last().score_only);
  Computes(decode_call());
  EXPECT_EQ(Ended(1), std::nullopt);
  Closed(decode_call());
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(AloneScoresTest, AWorkerThatGivesNoneIsNotAskedBesideOneThatDoes) {
  Come(1, /*scores_prompts=*/false);
  Come(2);
  Wait(seconds(2));
  for (uint64_t key : {1, 2, 3}) {
    Submit(key, ToScore(true));
    EXPECT_EQ(outbox_.decodes.back().worker, 2);
    Computes(decode_call());
    Scores(decode_call(), 1, 3);
    EXPECT_EQ(Ended(key), Code::kOk);
  }
}

class WaitingToBeScoredTest : public AloneScoresTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(ScoreOnly, WaitingToBeScoredTest, testing::Bool());

TEST_P(WaitingToBeScoredTest, KeepsOnlyTheWorkersThatScore) {
  Come(1, /*scores_prompts=*/false);
  Come(2);
  Wait(seconds(2));
  Submit(1, ToScore(GetParam()));  // Asked, and without an answer yet: it is kept for this one.
  Submit(2, ToScore(GetParam()));
  Submit(3, Request());
  ASSERT_THAT(outbox_.decodes, SizeIs(2));
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
  EXPECT_EQ(last().sampling.num_prompt_logprobs, -1);
  Computes(outbox_.decodes[0].call);
  ASSERT_THAT(outbox_.decodes, SizeIs(3));
  EXPECT_EQ(outbox_.decodes.back().worker, 2) << "the second";
  EXPECT_EQ(last().sampling.num_prompt_logprobs, 0);
}

// Nobody is overtaken where both could go.
TEST_F(AloneScoresTest, DoNotOvertakeAPromptThatNoWorkerHasRoomFor) {
  Come(1, /*scores_prompts=*/false);
  Come(2);
  Wait(seconds(2));
  for (const uint64_t key : {1, 2}) Submit(key, Request());  // Asked, without an answer.
  ASSERT_THAT(outbox_.decodes, SizeIs(2));
  Submit(3, Request());
  Submit(4, ToScore(true));
  EXPECT_THAT(outbox_.decodes, SizeIs(2));
  for (const int i : {0, 1}) Computes(outbox_.decodes[i].call);
  ASSERT_THAT(outbox_.decodes, SizeIs(4));
  EXPECT_FALSE(outbox_.decode_requests[2].score_only) << "the older one went first";
}

TEST_F(AloneScoresTest, FromAnotherWorkerBeginAnewAndTheClientSeesEachOnce) {
  BeAlone();
  Submit(1, ToScore(false));
  Computes(decode_call());
  Scores(decode_call(), 1, 2);
  const CallId first = decode_call();
  Come(2);
  Go(1);
  Closed(first, absl::UnavailableError("gone"));
  Wait(milliseconds(500));
  Wait(seconds(2));
  ASSERT_NE(decode_call(), first);
  EXPECT_EQ(outbox_.decodes.back().worker, 2);
  EXPECT_EQ(last().sampling.num_prompt_logprobs, 0);
  Computes(decode_call(), last().attempt);
  Scores(decode_call(), 1, 3, last().attempt);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
}

TEST_F(AloneScoresTest, ThatAreSkippedCostTheCallBeforeATokenIsBelieved) {
  BeAlone();
  Submit(1, ToScore(false));
  Computes(decode_call());
  Scores(decode_call(), 1, 2);
  Tokens(decode_call(), 3, 50);
  EXPECT_THAT(Seen(1), IsEmpty());
  EXPECT_THAT(outbox_.cancelled, ElementsAre(decode_call()));
}

TEST_F(AloneScoresTest, AloneATokenCostsTheCall) {
  BeAlone();
  Submit(1, ToScore(true, /*length=*/1));
  Computes(decode_call());
  Tokens(decode_call(), 1, 50);
  EXPECT_THAT(outbox_.cancelled, ElementsAre(decode_call()));
}

// The prefill worker went after the handoff, with scores that it had not told.
TEST_F(AloneScoresTest, ThatAreOwedAtTheEndOfAnAnswerAreSoughtForThePromptAlone) {
  Come(0);
  Come(1);
  Submit(1, ToScore(false));
  Reserved(decode_call());
  const CallId decode = decode_call();
  Scores(prefill_call(), 1, 2);
  Tokens(decode, 3, 50);
  Closed(prefill_call(), absl::UnavailableError("gone"));
  Go(0);
  for (int32_t i = 1; i < 4; ++i) {
    Tokens(decode, 3 + i, 50 + i, i == 3 ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_EQ(Ended(1), std::nullopt);
  Wait(seconds(2));
  ASSERT_NE(decode_call(), decode);
  EXPECT_TRUE(last().score_only);
  EXPECT_THAT(last().tokens, ElementsAre(7, 7, 7));
  Computes(decode_call(), last().attempt);
  Scores(decode_call(), 1, 3, last().attempt);
  EXPECT_THAT(Scored(1), ElementsAre(1, 2));
  EXPECT_EQ(Ended(1), Code::kOk);
}

// It keeps nothing of a call without an answer.
TEST_F(AloneScoresTest, AreNotReturnedForButSoughtAnew) {
  BeAlone();
  Submit(1, ToScore(true));
  Computes(decode_call());
  const CallId first = decode_call();
  Handle(WorkerDown{.worker = 1, .reason = "its session ended"});
  Closed(first, absl::UnavailableError("its session ended"));
  Come(1);
  Wait(seconds(2));
  ASSERT_NE(decode_call(), first);
  EXPECT_TRUE(last().compute_prompt);
  EXPECT_EQ(node_->counters().returns, 0);
}

}  // namespace
}  // namespace baton
