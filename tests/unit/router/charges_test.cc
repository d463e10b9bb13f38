// What a tenant is charged for what workers compute, seen by whose turn comes next.
#include <string>

#include "gtest/gtest.h"
#include "router/node.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using std::chrono::seconds;
using Code = absl::StatusCode;

// One prefill worker, which takes one prompt at a time, and two decode workers. Who refused is not
// asked again while a test runs.
class ChargesTest : public RecoveryHarness {
 protected:
  void SetUp() override {
    Create({.max_pending_prefill_tokens = 1, .retry_delay = seconds(5)}, true,
           {Role::kPrefill, Role::kDecode, Role::kDecode});
  }
  static ValidRequest Of(const std::string& tenant, int32_t prompt_length = 3,
                         int32_t max_tokens = 20) {
    ValidRequest request = Request(prompt_length, max_tokens);
    request.tenant = tenant;
    return request;
  }
  // Two wait, of which one tenant came first; a request is named by its prompt's first token.
  void Queue(const std::string& first, const std::string& second) {
    for (const std::string& tenant : {first, second}) {
      ValidRequest request = Of(tenant);
      request.prompts[0][0] = tenant[0];
      Submit(next_key_++, std::move(request));
    }
    num_opened_ = outbox_.decodes.size();
  }
  // Of those that wait: whose tenant's turn came.
  std::string Next() {
    EXPECT_EQ(outbox_.decodes.size(), num_opened_ + 1);
    return std::string(1, static_cast<char>(last_decode().tokens[0]));
  }
  static absl::Status Full() { return absl::ResourceExhaustedError("no blocks are free"); }

  uint64_t next_key_ = 100;
  size_t num_opened_ = 0;
};

TEST_F(ChargesTest, WhatWasComputedIsPaidThoughAWorkerRefusesLater) {
  Submit(1, Of("a", 30));
  Reserved(decode_call());
  Prefilled(prefill_call(), 30, 50);
  HandoffFailed(decode_call(), 1);
  Reserved(decode_call(), 2);
  HandoffFailed(decode_call(), 2);
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  const CallId other = decode_call();
  Submit(2, Of("c"));  // Keeps the prefill worker busy.
  Queue("b", "a");
  Closed(other, Full());
  num_opened_ = outbox_.decodes.size();
  Handle(ClientCancel{2});
  EXPECT_EQ(Next(), "b");
}

TEST_F(ChargesTest, WhatAWorkerMayHaveComputedIsPaidToo) {
  Submit(1, Of("a", 30));
  Reserved(decode_call());
  const int32_t lost = outbox_.decodes.back().worker;
  Kill(lost, {decode_call()});
  Judged();
  ASSERT_EQ(outbox_.decodes.size(), 2u);
  Queue("b", "a");
  Closed(decode_call(), Full());
  Handle(ClientCancel{1});
  Up(lost, 500);
  EXPECT_EQ(Next(), "b");
}

TEST_F(ChargesTest, APromptIsPaidOnceHoweverOftenItIsComputed) {
  Submit(1, Of("a", 30));
  Reserved(decode_call());
  Prefilled(prefill_call(), 30, 50);
  Closed(prefill_call());
  const CallId first = decode_call();
  const int32_t lost = outbox_.decodes.back().worker;
  for (int32_t position = 30; position < 39; ++position) Tokens(first, position, 50);
  Submit(2, Of("b"));  // Comes level with a, and is 5 behind then.
  Reserved(decode_call());
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 3, 50);
  Tokens(decode_call(), 4, 50);
  Kill(lost, {first});
  Judged();
  Reserved(decode_call(), 2);
  Queue("a", "b");
  Prefilled(prefill_call(), 39, 50, 2);  // One token more, which costs 2.
  EXPECT_EQ(Next(), "a");
}

TEST_F(ChargesTest, AFurtherChoiceCostsTheTokenThatIsComputedOfItsPrompt) {
  ValidRequest choices = Of("a");
  choices.num_choices = 2;
  Submit(1, std::move(choices));
  Reserved(decode_call());
  Prefilled(prefill_call(), 3, 50);
  const CallId first = decode_call();
  Submit(2, Of("c"));  // Keeps the prefill worker busy.
  Queue("a", "b");
  Tokens(first, 3, 50);
  ASSERT_EQ(node_->counters().joins, 1);
  num_opened_ = outbox_.decodes.size();
  Handle(ClientCancel{2});
  EXPECT_EQ(Next(), "b");
}

// The forecast of a wait goes by how long answers were; a scored prompt has none.
TEST_F(ChargesTest, AnswersThatEndedSayHowLongTheNextWillTake) {
  ToDecoding(1, Of("a"));
  for (int32_t position = 4; position < 22; ++position) Tokens(decode_call(), position, 50);
  Tokens(decode_call(), 22, 50, FinishReason::kLength);
  ASSERT_EQ(Ended(1), Code::kOk);
  ValidRequest scores = Of("a");
  scores.score_only = true;
  scores.sampling.num_prompt_logprobs = 1;
  for (uint64_t key = 10; key < 32; ++key) Submit(key, scores);
  for (int i = 0; i < 20; ++i) {  // Three tokens each second.
    Wait(seconds(1));
    Scores(prefill_call(), 1, 3);
  }
  Submit(50, Of("a"));
  EXPECT_EQ(Ended(50), std::nullopt) << "one prompt is before it";
  Submit(51, Of("a"));
  EXPECT_EQ(Ended(51), Code::kResourceExhausted) << "and an answer of twenty tokens";
}

}  // namespace
}  // namespace baton
