// Every field of the first token that a prefill worker tells with its K/V, out of the range that
// the decode worker's code assumes: a failed handoff, and nothing of it reaches client or model.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kLength = 6;
constexpr int32_t kEos = 1;
constexpr int32_t kStop = 77;

class FirstTokenTest : public DecodeNodeHarness {
 protected:
  // A prompt of 6 tokens and one alternative asked for; everything has come.
  void Hand(CallId call, TokenOutput first, int32_t max_tokens = 4) {
    DecodeRequest request = Request(call, kLength, max_tokens);
    request.sampling.num_logprobs = 1;
    request.sampling.stop_token_ids = {kStop};
    Open(call, std::move(request));
    Begin(call);
    EndTransfer(call, absl::OkStatus(), std::move(first));
  }
  static TokenOutput Good() {
    return {.position = kLength, .token = 50, .logprob = -1, .top = {{.token = 3, .logprob = -2}}};
  }
};

struct Row {
  const char* field;
  const char* named;  // In the reason.
  std::function<void(TokenOutput*)> spoil;
};

std::vector<Row> Rows() {
  // Does not compile when a field is added: give it rows. Any 64 bits are a digest.
  [[maybe_unused]] const auto& [position, token, logprob, top, logits_digest, finish] =
      TokenOutput();
  return {
      {"position", "position is 5", [](auto* o) { o->position = kLength - 1; }},
      {"position", "position is 7", [](auto* o) { o->position = kLength + 1; }},
      {"position", "position is -1", [](auto* o) { o->position = -1; }},
      {"position", "position is 2147483647", [](auto* o) { o->position = INT32_MAX; }},
      {"token", "first token is -1", [](auto* o) { o->token = -1; }},
      {"token", "first token is 100000", [](auto* o) { o->token = 100000; }},
      {"token", "first token is 2147483647", [](auto* o) { o->token = INT32_MAX; }},
      {"logprob", "out of range", [](auto* o) { o->logprob = kNan; }},
      {"logprob", "out of range", [](auto* o) { o->logprob = kInf; }},
      {"top", "2 alternatives; asked for 1", [](auto* o) { o->top.push_back({.token = 4}); }},
      {"top", "out of range", [](auto* o) { o->top[0].token = -1; }},
      {"top", "out of range", [](auto* o) { o->top[0].token = 100000; }},
      {"top", "out of range", [](auto* o) { o->top[0].logprob = kNan; }},
      {"finish", "finish reason is 1", [](auto* o) { o->finish = FinishReason::kStop; }},
      {"finish", "finish reason is 2", [](auto* o) { o->finish = FinishReason::kLength; }},
      {"finish", "finish reason is 9", [](auto* o) { o->finish = FinishReason{9}; }},
      {"finish", "finish reason is 0 for token 1", [](auto* o) { o->token = kEos; }},
      {"finish", "finish reason is 0 for token 77", [](auto* o) { o->token = kStop; }},
  };
}

TEST_F(FirstTokenTest, EachBadOneIsAFailedHandoff) {
  CallId call = 0;
  for (const Row& row : Rows()) {
    SCOPED_TRACE(row.named);
    TokenOutput first = Good();
    row.spoil(&first);
    Hand(++call, first);
    EXPECT_TRUE(Tokens(call).empty()) << row.field;
    const auto told = outbox_.Events<HandoffFailedEvent>(call);
    ASSERT_EQ(told.size(), 1u) << row.field;
    EXPECT_THAT(told[0].reason, HasSubstr(row.named));
    EXPECT_EQ(outbox_.Closed(call), std::nullopt);
    EXPECT_TRUE(runner_.plans.empty());
    Handle(CallBroken{call});
    EXPECT_TRUE(node_.idle());
    EXPECT_EQ(pool_.counts().cached, 0);  // What came with it is not kept either.
  }
  EXPECT_EQ(node_.counters().handoffs, 0);
  EXPECT_EQ(node_.counters().handoffs_failed, static_cast<int64_t>(Rows().size()));
}

TEST_F(FirstTokenTest, AfterABadOneTheNextAttemptGoesOn) {
  TokenOutput first = Good();
  first.token = -1;
  Hand(1, first);
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 2, .prefill = 67}});
  Begin(1);
  EndTransfer(1, absl::OkStatus(), Good());
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(kLength, 50)));
}

TEST_F(FirstTokenTest, TheLastTokenHasToSaySo) {
  Hand(1, Good(), /*max_tokens=*/1);
  EXPECT_THAT(outbox_.Events<HandoffFailedEvent>(1).at(0).reason, HasSubstr("finish reason is 0"));
  TokenOutput last = Good();
  last.finish = FinishReason::kLength;
  Hand(2, last, /*max_tokens=*/1);
  EXPECT_THAT(Tokens(2), ElementsAre(Pair(kLength, 50)));
  EXPECT_EQ(outbox_.Closed(2), absl::StatusCode::kOk);
}

TEST_F(FirstTokenTest, ABadOneThatIsRebindAlreadyGoesToTheNextWriter) {
  Open(1, Request(1, kLength));
  Begin(1);
  const TicketId old = TicketOf(1);
  Handle(RebindAsked{{.sequence = {1, 1}, .attempt = 2, .prefill = 67}});
  Handle(
      TransferEvent{.ticket = old, .receiver = true, .first = {.position = kLength, .token = -1}});
  EXPECT_NE(TicketOf(1), old);
  EXPECT_TRUE(outbox_.Events<HandoffFailedEvent>(1).empty());
  EXPECT_TRUE(Tokens(1).empty());
}

}  // namespace
}  // namespace baton
