#include "router/waits.h"

#include "gtest/gtest.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using std::chrono::seconds;
using State = SequenceState::State;
using Due = Waits::Due;

class WaitsTest : public testing::Test {
 protected:
  Time At(int second) const { return Time(seconds(second)); }
  // Who is due then, and for what; puts it off.
  Due Look(int second, Time moved = Time{}) {
    const auto counter = waits_.Expired(At(second));
    if (!counter) return Due::kNothing;
    EXPECT_EQ(*counter, sequence_.id.counter);
    return waits_.Check(sequence_, moved, At(second));
  }
  RouterNodeOptions options_{.no_progress_limit = seconds(100),
                             .answer_limit = seconds(30),
                             .hold_limit = seconds(10),
                             .verdict_limit = seconds(20)};
  Waits waits_{options_};
  SequenceBuilder sequences_;
  SequenceState& sequence_ = sequences_.New();
};

TEST_F(WaitsTest, EachStateWaitsForItsOwnLimit) {
  for (const auto& [state, limit] : {std::pair(State::kReserving, 30),
                                     std::pair(State::kRebinding, 30),
                                     std::pair(State::kPrefilling, 20)}) {
    sequence_.state = state;
    waits_.Note(sequence_, At(1));
    waits_.Await(sequence_, At(1));
    EXPECT_TRUE(waits_.Awaits(sequence_));
    EXPECT_EQ(waits_.Next(), At(1 + limit));
    EXPECT_EQ(Look(limit), Due::kNothing);
    EXPECT_EQ(Look(1 + limit), Due::kOverdue);
    waits_.Clear(sequence_);
    EXPECT_FALSE(waits_.Awaits(sequence_));
    EXPECT_EQ(waits_.Next(), At(101)) << "silence";
  }
  waits_.Forget(sequence_);
  EXPECT_EQ(waits_.Next(), kNever);
}

TEST_F(WaitsTest, SilenceCountsFromTheLastWordOrFromTheWorkersLastMove) {
  sequence_.state = State::kDecoding;
  waits_.Note(sequence_, At(0));
  waits_.Clear(sequence_);
  waits_.Note(sequence_, At(40));
  EXPECT_EQ(Look(100), Due::kNothing) << "it spoke at 40";
  EXPECT_EQ(waits_.Next(), At(140));
  EXPECT_EQ(Look(140, At(90)), Due::kNothing) << "its worker moved at 90";
  EXPECT_EQ(waits_.Next(), At(190));
  EXPECT_EQ(Look(190, At(90)), Due::kSilent);
}

TEST_F(WaitsTest, AHoldCountsFromItsFirstStartUntilNothingIsHeldOrItIsOver) {
  sequence_.decode.call = 1;
  waits_.AwaitTurn(sequence_, At(0));
  EXPECT_TRUE(waits_.IsHeld(sequence_));
  sequence_.state = State::kRebinding;
  waits_.Await(sequence_, At(4));
  EXPECT_EQ(waits_.Next(), At(34)) << "the answer is waited for";
  sequence_.state = State::kQueued;
  waits_.AwaitTurn(sequence_, At(5));
  EXPECT_EQ(waits_.Next(), At(10)) << "since the first start";
  EXPECT_EQ(Look(10), Due::kOverdue);
  sequence_.decode.call = 0;
  waits_.AwaitTurn(sequence_, At(10));
  EXPECT_FALSE(waits_.IsHeld(sequence_));
  EXPECT_EQ(waits_.Next(), kNever) << "who only waits for its turn is not silent";
  sequence_.decode.call = 2;
  waits_.AwaitTurn(sequence_, At(50));
  EXPECT_EQ(waits_.Next(), At(60)) << "another hold";
}

TEST_F(WaitsTest, ARestartBeginsEveryWaitThatRunsAndNoOther) {
  sequence_.state = State::kReserving;
  waits_.Note(sequence_, At(0));
  waits_.Await(sequence_, At(0));
  waits_.Restart(sequence_, At(7));
  EXPECT_EQ(waits_.Next(), At(37));
  sequence_.state = State::kDecoding;
  waits_.Clear(sequence_);
  EXPECT_EQ(waits_.Next(), At(107));
  waits_.Restart(sequence_, At(9));
  EXPECT_EQ(waits_.Next(), At(109));
  sequence_.state = State::kQueued;
  sequence_.prefill.call = 1;
  waits_.AwaitTurn(sequence_, At(10));
  waits_.Restart(sequence_, At(15));
  EXPECT_EQ(waits_.Next(), At(25));
  sequence_.prefill.call = 0;
  waits_.AwaitTurn(sequence_, At(15));
  waits_.Restart(sequence_, At(16));
  EXPECT_EQ(waits_.Next(), kNever);
}

TEST_F(WaitsTest, ARestartBeginsTheHoldAgainThatAnAnswerInterrupts) {
  sequence_.decode.call = 1;
  waits_.AwaitTurn(sequence_, At(0));
  sequence_.state = State::kRebinding;
  waits_.Await(sequence_, At(4));
  waits_.Restart(sequence_, At(7));
  sequence_.state = State::kQueued;
  waits_.AwaitTurn(sequence_, At(8));
  EXPECT_EQ(waits_.Next(), At(17));
}

TEST_F(WaitsTest, WhoSpokeMeanwhileIsStillWaitedForInTime) {
  sequence_.state = State::kReserving;
  waits_.Note(sequence_, At(0));
  waits_.Await(sequence_, At(80));
  EXPECT_EQ(waits_.Next(), At(100)) << "silence comes first";
  EXPECT_EQ(Look(100, At(95)), Due::kNothing);
  EXPECT_EQ(waits_.Next(), At(110)) << "the answer";
}

TEST_F(WaitsTest, TheSoonestIsToldFirst) {
  SequenceState& other = sequences_.New();
  sequence_.state = other.state = State::kReserving;
  waits_.Await(sequence_, At(5));
  waits_.Await(other, At(4));
  EXPECT_EQ(waits_.Expired(At(40)), other.id.counter);
  waits_.Forget(other);
  EXPECT_EQ(waits_.Expired(At(40)), sequence_.id.counter);
  EXPECT_EQ(waits_.Expired(At(34)), std::nullopt);
}

}  // namespace
}  // namespace baton
