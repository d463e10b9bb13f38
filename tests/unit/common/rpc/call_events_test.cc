#include "common/rpc/call_events.h"

#include <gtest/gtest.h>

#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"

namespace baton {
namespace {

constexpr uint32_t kRequestSeal = 0xFFFFFFFF;  // Places go on behind the largest number.
constexpr WireLimits kCallLimits{.vocab_size = 100, .max_model_len = 1000};
constexpr int64_t kMaxOutputsHere = 8;

v1::DecodeEvent Tokens(int32_t position, int num_outputs = 1) {
  TokensEvent event;
  for (int i = 0; i < num_outputs; ++i) {
    event.outputs.push_back({.position = position + i, .token = 3});
  }
  v1::DecodeEvent proto;
  ToProto(event, &proto);
  return proto;
}

v1::DecodeEvent Alive() {
  v1::DecodeEvent event;
  event.mutable_alive();
  return event;
}

class CallEventsTest : public testing::Test {
 protected:
  v1::DecodeEvent Sent(v1::DecodeEvent event) {
    sealer_.Seal(&event);
    return event;
  }
  // Taken, and what it brought: 1 an event, 0 a sign of life.
  void ExpectTaken(const v1::DecodeEvent& event, bool is_mail = true) {
    const auto taken = events_.Take(event);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->has_value(), is_mail);
  }
  void ExpectDamageSeen(const v1::DecodeEvent& event) {
    EXPECT_TRUE(absl::IsDataLoss(events_.Take(event).status()));
    const CallEvents::End end = events_.EndOf({.code = absl::StatusCode::kCancelled});
    EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
    EXPECT_TRUE(end.is_broken);
  }
  EventSealer sealer_{kRequestSeal};
  CallEvents events_{kCallLimits, kMaxOutputsHere, kRequestSeal};
};

v1::PrefillEvent Scores(int32_t position) {
  v1::PrefillEvent proto;
  ToProto(ScoresEvent{.attempt = 1, .logprobs = {{.position = position, .token = 3, .rank = 1}}},
          &proto);
  return proto;
}

v1::PrefillEvent Prefilled() {
  v1::PrefillEvent proto;
  ToProto(PrefilledEvent{.attempt = 1, .first = TokenOutput{.position = 3, .token = 4}}, &proto);
  return proto;
}

TEST(EventSealerTest, RoutersBeforeProtocol3LearnOneEndpoint) {
  ReservedEvent reserved{.attempt = 1};
  reserved.ranks = {{"d:0", {0, 4}}, {"d:1", {4, 4}}};
  for (const int32_t protocol : {1, 2, 3, kProtocolVersion}) {
    v1::DecodeEvent event;
    ToProto(reserved, &event);
    EXPECT_TRUE(EventSealer(kRequestSeal, protocol).Seal(&event));
    EXPECT_TRUE(CheckSeal(event, kRequestSeal).ok());
    EXPECT_EQ(event.reserved().data_endpoint(), protocol < 3 ? "8@d:0,d:1" : "") << protocol;
    EXPECT_EQ(event.reserved().ranks_size(), protocol < 3 ? 0 : 2) << protocol;
  }
}

TEST(EventSealerTest, RoutersOfProtocol1GetAPromptsScoresWithItsFirstToken) {
  for (const int32_t protocol : {1, 2, kProtocolVersion}) {
    EventSealer sealer(kRequestSeal, protocol);
    v1::PrefillEvent first = Scores(1), second = Scores(2), prefilled = Prefilled();
    EXPECT_EQ(sealer.Seal(&first), protocol > 1);
    EXPECT_EQ(sealer.Seal(&second), protocol > 1);
    EXPECT_TRUE(sealer.Seal(&prefilled));
    // What was not sent has no number.
    EXPECT_TRUE(CheckSeal(prefilled, kRequestSeal + (protocol > 1 ? 2 : 0)).ok()) << protocol;
    const auto& scores = prefilled.prefilled().prompt_logprobs();
    ASSERT_EQ(scores.size(), protocol > 1 ? 0 : 2) << protocol;
    for (int i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i].position(), i + 1);
  }
}

TEST_F(CallEventsTest, TakesEventsInTheirOrderAndSignsOfLifeBetweenThem) {
  ExpectTaken(Sent(Alive()), false);
  ExpectTaken(Sent(Tokens(1)));
  ExpectTaken(Sent(Tokens(2)));
  ExpectTaken(Sent(Alive()), false);
  ExpectTaken(Sent(Alive()), false);
  ExpectTaken(Sent(Tokens(3)));
  EXPECT_TRUE(events_.EndOf({}).status.ok());
  EXPECT_FALSE(events_.EndOf({}).is_broken);
}

TEST_F(CallEventsTest, ASignOfLifeTellsHowManyEventsWereSentBeforeIt) {
  Sent(Tokens(1));
  Sent(Alive());
  Sent(Tokens(2));
  EXPECT_EQ(Sent(Alive()).alive().num_events(), 2u);
}

TEST_F(CallEventsTest, AnEventThatComesTwiceIsRefused) {
  const v1::DecodeEvent event = Sent(Tokens(1));
  ExpectTaken(event);
  ExpectDamageSeen(event);
}

TEST_F(CallEventsTest, AnEventBehindAMissingOneIsRefused) {
  Sent(Tokens(1));
  ExpectDamageSeen(Sent(Tokens(2)));
}

TEST_F(CallEventsTest, ASignOfLifeBehindAMissingEventIsRefused) {
  ExpectTaken(Sent(Tokens(1)));
  Sent(Tokens(2));
  // As it would be without its seal, so that only the count tells.
  v1::DecodeEvent alive = Sent(Alive());
  Seal(&alive, kRequestSeal + 1);
  ExpectDamageSeen(alive);
}

TEST_F(CallEventsTest, AnEventOfAnotherCallIsRefused) {
  v1::DecodeEvent event = Tokens(1);
  EventSealer(kRequestSeal + 7).Seal(&event);
  ExpectDamageSeen(event);
}

TEST_F(CallEventsTest, AChangedEventIsRefused) {
  v1::DecodeEvent event = Sent(Tokens(1));
  event.mutable_tokens()->mutable_outputs(0)->set_token(4);
  ExpectDamageSeen(event);
}

TEST_F(CallEventsTest, AnEventThatIsWholeAndOutOfRangeSaysNothingOfTheConnection) {
  v1::DecodeEvent event = Tokens(1);
  event.mutable_tokens()->mutable_outputs(0)->set_token(kCallLimits.vocab_size);
  EXPECT_TRUE(absl::IsInvalidArgument(events_.Take(Sent(event)).status()));
  const CallEvents::End end = events_.EndOf({.code = absl::StatusCode::kCancelled});
  EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
  EXPECT_FALSE(end.is_broken);
}

TEST_F(CallEventsTest, MoreThanWasAskedForIsRefused) {
  ExpectTaken(Sent(Tokens(1, 3)));  // An event and its outputs: 4 of 8.
  ExpectTaken(Sent(Tokens(4, 3)));
  EXPECT_TRUE(absl::IsInvalidArgument(events_.Take(Sent(Tokens(7, 0))).status()));
}

TEST_F(CallEventsTest, ACallThatIsSilentEndsWithItsConnection) {
  for (int sweep = 0; sweep < kMaxSilentSweeps; ++sweep) ASSERT_FALSE(events_.Sweep());
  ExpectTaken(Sent(Alive()), false);
  for (int sweep = 0; sweep < kMaxSilentSweeps; ++sweep) ASSERT_FALSE(events_.Sweep());
  ASSERT_TRUE(events_.Sweep());
  const CallEvents::End end = events_.EndOf({.code = absl::StatusCode::kCancelled});
  EXPECT_TRUE(absl::IsUnavailable(end.status)) << end.status;
  EXPECT_TRUE(end.is_broken);
}

TEST_F(CallEventsTest, ACallWhoseEventCouldNotBeReadEndsSoon) {
  events_.OnUnread();
  EXPECT_FALSE(events_.Sweep());
  EXPECT_TRUE(events_.Sweep());
}

TEST_F(CallEventsTest, ACallThatIsGivenUpIsUnavailableAndItsConnectionIsNotAccused) {
  events_.GiveUp();
  const CallEvents::End end = events_.EndOf({.code = absl::StatusCode::kCancelled});
  EXPECT_TRUE(absl::IsUnavailable(end.status)) << end.status;
  EXPECT_FALSE(end.is_broken);
}

TEST_F(CallEventsTest, TheWorkersOwnWordComesFirst) {
  const PeerEnd refusal{.code = absl::StatusCode::kResourceExhausted, .reason = "OVERLOADED"};
  events_.GiveUp();
  while (!events_.Sweep()) continue;
  EXPECT_TRUE(events_.EndOf({}).status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(events_.EndOf(refusal).status));
  EXPECT_FALSE(events_.EndOf(refusal).is_broken);
}

TEST_F(CallEventsTest, ARequestThatArrivedDamagedAccusesTheConnection) {
  const PeerEnd refusal{.code = absl::StatusCode::kDataLoss, .reason = "BAD_PEER_DATA"};
  EXPECT_TRUE(absl::IsDataLoss(events_.EndOf(refusal).status));
  EXPECT_TRUE(events_.EndOf(refusal).is_broken);
}

TEST_F(CallEventsTest, AnEndThatNobodyGaveAccusesTheConnection) {
  EXPECT_TRUE(events_.EndOf({.code = absl::StatusCode::kInternal}).is_broken);
}

TEST(MaxOutputsTest, EachTokenMayComeAloneAndEachScoreToo) {
  DecodeRequest decode;
  decode.sampling.max_tokens = 100;
  EXPECT_GE(MaxOutputs(decode), 200);
  EXPECT_LE(MaxOutputs(decode), 250);
  decode.prompt_length = 100;
  decode.sampling.num_prompt_logprobs = 20;
  EXPECT_LE(MaxOutputs(decode), 250) << "they are the prefill worker's";
  decode.compute_prompt = true;
  EXPECT_GE(MaxOutputs(decode), 200 + 99 * (1 + 21));
  PrefillRequest prefill;
  prefill.prompt_length = 100;
  prefill.sampling.num_prompt_logprobs = -1;
  EXPECT_LE(MaxOutputs(prefill), 100);
  prefill.sampling.num_prompt_logprobs = 20;
  EXPECT_GE(MaxOutputs(prefill), 99 * (1 + 21));  // Each position an event of its own.
  EXPECT_LE(MaxOutputs(prefill), 100 * 22 + 100);
}

}  // namespace
}  // namespace baton
