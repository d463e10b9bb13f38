// Decode workers whose group has no prefill worker take new prompts and compute them themselves.
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
using testing::HasSubstr;
using Code = absl::StatusCode;

// Worker 0 prefills, 1 and 2 decode; none is up at first.
class AloneTest : public RouterHarness {
 protected:
  void SetUp() override { Create({}, /*up=*/false); }
  void Come(int32_t worker, const std::string& kind = "a", bool computes_prompts = true) {
    Handle(WorkerUp{.worker = worker,
                    .hello = {.role = roles_[worker],
                              .incarnation = kFirstIncarnation + worker,
                              .numerics_id = kind,
                              .block_size = 16,
                              .num_blocks = 100,
                              .max_model_len = 200,
                              .computes_prompts = computes_prompts && worker > 0}});
  }
  void Go(int32_t worker) {
    Handle(WorkerDown{.worker = worker, .reason = "gone", .is_gone = true});
  }
  void BeAlone() {
    Come(1);
    Wait(seconds(2));
  }
  // Worker 1 beside the pair of 0 and 2.
  void BeAloneBesideAPair() {
    Come(0, "b");
    Come(1, "a");
    Come(2, "b");
    Wait(seconds(2));
  }
  void Computes(CallId call, Attempt attempt = 1, int32_t cached = 0) {
    Handle(WorkerEventReceived{
        call, TokensEvent{.attempt = attempt, .outputs = {}, .cached_tokens = cached}});
  }
  const DecodeRequest& last() const { return outbox_.decode_requests.back(); }
};

TEST_F(AloneTest, AfterTwoSecondsThePromptsGoToTheDecodeWorkerAlone) {
  Come(1);
  Submit(1, Request());
  Wait(milliseconds(1999));
  EXPECT_TRUE(outbox_.decodes.empty());
  EXPECT_EQ(node_->NextDeadline(), now_ + milliseconds(1)) << "nothing else would wake it";
  Wait(milliseconds(1));
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(outbox_.decodes[0].worker, 1);
  EXPECT_EQ(last().prefill, 0u);
  EXPECT_TRUE(last().compute_prompt);
  EXPECT_THAT(last().tokens, ElementsAre(7, 7, 7));
  Computes(decode_call());
  for (int32_t i = 0; i < 4; ++i) {
    Tokens(decode_call(), 3 + i, 50 + i, i == 3 ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_THAT(Seen(1), ElementsAre(50, 51, 52, 53));
  EXPECT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(node_->counters().self_prefills, 1);
  EXPECT_TRUE(outbox_.prefills.empty());
}

TEST_F(AloneTest, OnceItIsAloneNewRequestsWaitForNothing) {
  Come(0);
  Come(1);
  Go(0);
  Wait(seconds(2));
  Submit(1, Request());
  EXPECT_TRUE(last().compute_prompt);
}

TEST_F(AloneTest, AWorkerThatDrainsIsNoneToWaitFor) {
  Come(0);
  Come(1);
  Handle(WorkerStatusChanged{0, {.incarnation = kFirstIncarnation, .draining = true}});
  Submit(1, Request());
  EXPECT_TRUE(outbox_.decodes.empty());
  Wait(seconds(2));
  EXPECT_TRUE(last().compute_prompt);
}

TEST_F(AloneTest, APrefillWorkerThatComesTakesOverWhatIsNotGivenYet) {
  BeAlone();
  Submit(1, Request());
  Computes(decode_call());
  Come(0);
  Submit(2, Request());
  EXPECT_FALSE(last().compute_prompt);
  EXPECT_EQ(last().prefill, kFirstIncarnation);
  EXPECT_THAT(outbox_.cancelled, ElementsAre()) << "what it computes it goes on with";
  Tokens(outbox_.decodes[0].call, 3, 50);
  EXPECT_THAT(Seen(1), ElementsAre(50));
}

TEST_F(AloneTest, WithinTwoSecondsThePairIsWaitedFor) {
  Come(1);
  Submit(1, Request());
  Wait(seconds(1));
  Come(0);
  EXPECT_FALSE(last().compute_prompt);
  Reserved(decode_call());
  EXPECT_EQ(outbox_.prefills.size(), 1u);
}

TEST_F(AloneTest, APrefillWorkerOfAnotherKindIsNone) {
  Come(0, "b");
  Come(1, "a");
  Submit(1, Request());
  Wait(seconds(2));
  EXPECT_TRUE(last().compute_prompt);
  Come(2, "b");
  Submit(2, Request());
  EXPECT_EQ(outbox_.decodes.back().worker, 2) << "a pair goes first";
  EXPECT_FALSE(last().compute_prompt);
}

TEST_F(AloneTest, WhatAPairOfAnotherKindDoesNotTakeGoesToTheOneThatIsAlone) {
  BeAloneBesideAPair();
  Submit(1, Request());
  ASSERT_EQ(outbox_.decodes.back().worker, 2);
  Closed(decode_call(), absl::ResourceExhaustedError("no blocks"));
  ASSERT_EQ(outbox_.decodes.size(), 2u) << "at once";
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
  EXPECT_TRUE(last().compute_prompt);
}

TEST_F(AloneTest, ThePairIsWaitedForWhereTheOneThatIsAloneHasNoRoomOrComputesAPrompt) {
  BeAloneBesideAPair();
  const WorkerStatus full{.incarnation = kFirstIncarnation + 1, .blocks = {.ready = 100}};
  const WorkerStatus busy{
      .incarnation = kFirstIncarnation + 1, .blocks = {.free = 100}, .queued_tokens = 9};
  uint64_t request = 0;
  for (const WorkerStatus& status : {full, busy}) {
    Handle(WorkerStatusChanged{1, status});
    Submit(++request, Request());
    const size_t asked = outbox_.decodes.size();
    ASSERT_EQ(outbox_.decodes.back().worker, 2);
    Closed(outbox_.decodes.back().call, absl::ResourceExhaustedError("no blocks"));
    EXPECT_EQ(outbox_.decodes.size(), asked) << "nobody else is asked";
    Handle(WorkerStatusChanged{2, {.incarnation = kFirstIncarnation + 2, .blocks = {.free = 100}}});
    ASSERT_EQ(outbox_.decodes.size(), asked + 1);
    EXPECT_EQ(outbox_.decodes.back().worker, 2);
  }
}

// Worker 1 is alone with room for 200 tokens, 0 and 2 are a pair for 4.
class LongAloneTest : public AloneTest {
 protected:
  void ComeShort(int32_t worker) {
    Handle(WorkerUp{.worker = worker,
                    .hello = {.kv_wire_version = kKvWireVersion + 1,
                              .role = roles_[worker],
                              .incarnation = kFirstIncarnation + worker,
                              .numerics_id = "a",
                              .block_size = 16,
                              .num_blocks = 100,
                              .max_model_len = 4,
                              .computes_prompts = worker > 0}});
  }
  void SetUp() override {
    AloneTest::SetUp();
    ComeShort(0);
    ComeShort(2);
    Come(1);
  }
};

TEST_F(LongAloneTest, NoRequestIsTooLongThatTheOneThatIsAloneTakes) {
  Submit(1, Request());
  EXPECT_TRUE(outbox_.decodes.empty());
  Wait(seconds(2));
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
  EXPECT_TRUE(last().compute_prompt);
}

TEST_F(LongAloneTest, AnAnswerThatRunsOutlivesABlipOfTheOneThatIsAlone) {
  Wait(seconds(2));
  Submit(1, Request());
  Computes(decode_call());
  Tokens(decode_call(), 3, 50);
  Go(1);
  Closed(decode_call(), absl::UnavailableError("gone"));
  Wait(milliseconds(500));
  Come(1);
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
  EXPECT_THAT(last().tokens, ElementsAre(7, 7, 7, 50));
}

TEST_F(AloneTest, BehindAPromptThatOnlyAPairTakesTheOneThatIsAloneTakesOthers) {
  Create({.max_pending_prefill_tokens = 3}, /*up=*/false);
  BeAloneBesideAPair();
  ValidRequest scored = Request();
  scored.sampling.num_prompt_logprobs = 0;
  scored.score_only = true;
  Submit(1, scored);
  Submit(2, scored);  // The prefill worker has its prompt.
  Submit(3, Request());
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_EQ(outbox_.decodes.back().worker, 1);
}

TEST_F(AloneTest, AWorkerThatDoesNotKnowThatIsNotAsked) {
  Come(1, "a", /*computes_prompts=*/false);
  Submit(1, Request());
  Wait(seconds(2));
  EXPECT_TRUE(outbox_.decodes.empty());
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(AloneTest, ScoresOfAPromptNeedAPrefillWorkerWhereTheOneThatIsAloneGivesNone) {
  BeAlone();
  ValidRequest scored = Request();
  scored.sampling.num_prompt_logprobs = 0;
  Submit(1, scored);
  ValidRequest only = Request();
  only.sampling.num_prompt_logprobs = 0;
  only.score_only = true;
  Submit(2, only);
  Wait(seconds(2));
  EXPECT_TRUE(outbox_.decodes.empty());
  EXPECT_EQ(Ended(1), Code::kUnavailable);
  EXPECT_EQ(Ended(2), Code::kUnavailable);
  EXPECT_THAT(std::string(outbox_.clients[1].ended[0].status.message()),
              HasSubstr("prompt log probabilities need a prefill worker, or a decode worker"));
}

TEST_F(AloneTest, AnAnswerOfOneTokenNeedsADecodeWorkerThen) {
  BeAlone();
  Submit(1, Request(3, 1));
  EXPECT_TRUE(last().compute_prompt);
  Computes(decode_call());
  Tokens(decode_call(), 3, 50, FinishReason::kLength);
  EXPECT_EQ(Ended(1), Code::kOk);
}

TEST_F(AloneTest, FurtherChoicesJoinWhenThePromptIsThere) {
  BeAlone();
  ValidRequest request = Request();
  request.num_choices = 2;
  Submit(1, request);
  Computes(decode_call());
  ASSERT_EQ(outbox_.decodes.size(), 1u) << "it is not computed yet";
  Tokens(decode_call(), 3, 50);
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(last().prefill, 0u);
  EXPECT_FALSE(last().compute_prompt);
  EXPECT_EQ(node_->counters().joins, 1);
}

TEST_F(AloneTest, ARefusalIsAskedAgainAndKeepsItsTurn) {
  BeAlone();
  Submit(1, Request());
  Submit(2, Request());
  ASSERT_EQ(outbox_.decodes.size(), 1u) << "the second asks when the first has its answer";
  Closed(outbox_.decodes[0].call, absl::ResourceExhaustedError("prompts are ahead"));
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  Submit(3, Request());
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u) << "the others are behind it";
  EXPECT_EQ(last().sequence.counter, 1u);
  EXPECT_EQ(last().attempt, 2u);
  EXPECT_TRUE(last().compute_prompt);
  Computes(decode_call(), 2);
  ASSERT_EQ(outbox_.decodes.size(), 3u);
  EXPECT_EQ(last().sequence.counter, 2u);
  EXPECT_EQ(node_->counters().self_prefills, 1) << "what was refused is none";
}

TEST_F(AloneTest, WhatItHadCachedIsTheUsersToSee) {
  BeAlone();
  Submit(1, Request(30, 1));
  Computes(decode_call(), 1, 16);
  Tokens(decode_call(), 30, 50, FinishReason::kLength);
  ASSERT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.clients[1].ended[0].cached_tokens, 16);
}

TEST_F(AloneTest, WhatItHadCachedIsCountedOnceHoweverOftenThePromptIsComputed) {
  BeAlone();
  Come(2);
  Wait(seconds(2));
  Submit(1, Request(30, 2));
  const int32_t first = outbox_.decodes[0].worker;
  Computes(decode_call(), 1, 16);
  Tokens(decode_call(), 30, 50);
  Closed(decode_call(), absl::UnavailableError("connection lost"));
  Go(first);
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Computes(decode_call(), 2, 28);
  Tokens(decode_call(), 31, 51, FinishReason::kLength, 2);
  ASSERT_EQ(Ended(1), Code::kOk);
  EXPECT_EQ(outbox_.clients[1].ended[0].cached_tokens, 16);
}

// Of two tenants who asked for as much the one is next of whose prompt less was computed.
TEST_F(AloneTest, WhatItHadCachedIsNotCharged) {
  BeAlone();
  const auto submit = [&](uint64_t key, const std::string& tenant, int32_t prompt_length) {
    ValidRequest request = Request(prompt_length);
    request.tenant = tenant;
    Submit(key, std::move(request));
  };
  Submit(1, Request());
  submit(2, "a", 100);
  submit(3, "b", 100);
  Computes(decode_call());
  ASSERT_EQ(last().tenant, "a");
  Computes(decode_call(), 1, 96);
  ASSERT_EQ(last().tenant, "b");
  submit(4, "b", 3);
  submit(5, "a", 3);
  Computes(decode_call());
  ASSERT_GT(outbox_.decodes.size(), 3u);
  EXPECT_EQ(outbox_.decode_requests[3].tenant, "a");
}

TEST_F(AloneTest, WhoIsConnectedAnewIsStillAlone) {
  BeAlone();
  Go(1);
  Wait(seconds(1));
  Come(1);
  Submit(1, Request());
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  EXPECT_TRUE(last().compute_prompt);
}

TEST_F(AloneTest, APrefillWorkerInBetweenIsWaitedForAnew) {
  BeAlone();
  Come(0);
  Go(0);
  Submit(1, Request());
  Wait(milliseconds(1999));
  EXPECT_TRUE(outbox_.decodes.empty());
  Wait(milliseconds(1));
  EXPECT_EQ(outbox_.decodes.size(), 1u);
}

// However long it waited before.
TEST_F(AloneTest, WhenTheOnlyWorkerGoesWhatQueuesWaitsForItFromThenOn) {
  BeAlone();
  Submit(1, Request());
  Submit(2, Request());
  ASSERT_EQ(outbox_.decodes.size(), 1u);
  for (int i = 0; i < 30; ++i) {
    Closed(decode_call(), absl::ResourceExhaustedError("prompts are ahead"));
    Wait(milliseconds(100));
  }
  Closed(decode_call(), absl::ResourceExhaustedError("prompts are ahead"));
  Go(1);
  Wait(milliseconds(1999));
  EXPECT_EQ(Ended(2), std::nullopt);
  const size_t asked = outbox_.decodes.size();
  Come(1);
  ASSERT_EQ(outbox_.decodes.size(), asked + 1) << "at once";
  EXPECT_EQ(last().sequence.counter, 1u);
  Closed(decode_call(), absl::ResourceExhaustedError("prompts are ahead"));
  Go(1);
  Wait(milliseconds(1999));
  EXPECT_EQ(Ended(2), std::nullopt) << "each time";
  Wait(milliseconds(1));
  EXPECT_EQ(Ended(2), Code::kUnavailable);
}

TEST_F(AloneTest, ScoresDoNotWaitForWhoGivesNone) {
  Come(1);
  ValidRequest scored = Request();
  scored.sampling.num_prompt_logprobs = 0;
  Submit(1, scored);
  Wait(seconds(1));
  EXPECT_EQ(Ended(1), std::nullopt) << "a prefill worker may come";
  Go(1);
  Wait(seconds(1));
  EXPECT_EQ(Ended(1), Code::kUnavailable);
}

TEST_F(AloneTest, WhatIsLostGoesToAnotherDecodeWorkerAlone) {
  Come(1);
  Come(2);
  Wait(seconds(2));
  Submit(1, Request());
  Computes(decode_call());
  Tokens(decode_call(), 3, 50);
  const int32_t first = outbox_.decodes[0].worker;
  Closed(decode_call(), absl::UnavailableError("connection lost"));
  Go(first);
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_EQ(outbox_.decodes[1].worker, 3 - first);
  EXPECT_TRUE(last().compute_prompt);
  EXPECT_THAT(last().tokens, ElementsAre(7, 7, 7, 50));
  EXPECT_EQ(node_->counters().moves, 1);
}

TEST_F(AloneTest, AReservationThatNobodyFillsIsALoss) {
  BeAlone();
  Submit(1, Request());
  Reserved(decode_call());
  EXPECT_THAT(outbox_.cancelled, ElementsAre(outbox_.decodes[0].call));
  EXPECT_TRUE(outbox_.prefills.empty());
}

TEST_F(AloneTest, AReservationWhosePrefillWorkerIsGoneIsGivenUpForIt) {
  Come(0);
  Come(1);
  ToPrefilling(1);
  Closed(prefill_call(), absl::UnavailableError("connection lost"));
  Go(0);
  Wait(seconds(2));
  Wait(milliseconds(20));
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  EXPECT_TRUE(last().compute_prompt);
  EXPECT_EQ(last().prefill, 0u);
  Computes(decode_call(), 2);
  Tokens(decode_call(), 3, 50);
  EXPECT_THAT(Seen(1), ElementsAre(50));
}

TEST_F(AloneTest, WhatItHasComputedIsKnownToBeThere) {
  node_ = std::make_unique<RouterNode>(
      RouterNodeOptions{.incarnation = 1, .hang_limit = kNoLimit}, roles_,
      MakeRoutingPolicy("prefix_affinity").value(), outbox_);
  const ValidRequest request = Request(2 * PrefixDirectory::kChunkTokens, 20);
  Come(1);
  Come(2);
  Wait(seconds(2));
  Submit(1, request);
  const int32_t first = outbox_.decodes.back().worker;
  Handle(ClientCancel{1});  // Before it has said a word.
  Go(first);
  Submit(2, request);
  ASSERT_EQ(outbox_.decodes.back().worker, 3 - first);
  Computes(decode_call());
  Handle(ClientCancel{2});
  Come(first);
  Wait(seconds(2));
  Submit(3, request);
  EXPECT_EQ(outbox_.decodes.back().worker, 3 - first);
}

TEST_F(AloneTest, TheViewSaysSo) {
  Come(0);
  Come(1);
  EXPECT_FALSE(node_->View().workers[1].alone);
  EXPECT_EQ(node_->View().workers[1].reason, "");
  Go(0);
  Wait(seconds(2));
  EXPECT_TRUE(node_->View().workers[1].alone);
  EXPECT_TRUE(node_->View().workers[1].healthy);
  EXPECT_THAT(node_->View().workers[1].reason, HasSubstr("computes prompts itself"));
  Submit(1, Request());
  Computes(decode_call());
  Tokens(decode_call(), 3, 50);
  EXPECT_EQ(node_->View().workers[1].last_prompt, Time{}) << "two tokens are a proof";
  Tokens(decode_call(), 4, 51);
  EXPECT_EQ(node_->View().workers[1].last_prompt, now_);
  EXPECT_EQ(node_->View().workers[0].last_token, Time{});
  Come(0);
  EXPECT_FALSE(node_->View().workers[1].alone);
}

}  // namespace
}  // namespace baton
