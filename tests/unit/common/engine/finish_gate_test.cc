#include "common/engine/finish_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

class FinishGateTest : public testing::Test {
 protected:
  // A prompt of which so many tokens are left; lower calls are older.
  Sequence& Add(CallId call, int32_t length, int32_t left, uint64_t group = 7) {
    auto sequence = std::make_unique<Sequence>();
    sequence->call = call;
    sequence->arrival = Time(std::chrono::seconds(call));
    sequence->tokens.assign(length, 1);
    sequence->finish_group = group;
    FinishGate::Enter(*sequence);
    sequence->num_computed = length - left;
    return *running_.emplace(AgeOf(*sequence), std::move(sequence)).first->second;
  }
  FinishGate::Calls Waiting(int32_t budget, Time now = Time{}) {
    return FinishGate(together_).Waiting(running_, budget, now);
  }

  int32_t together_ = 3;
  SequencesByAge running_;
};

TEST_F(FinishGateTest, WaitsForThoseOfItsGroupThatCannotFinishYet) {
  Add(1, 9, 1);
  Add(2, 9, 9);
  Add(3, 9, 1, /*group=*/8);  // There is nobody to wait for in its group.
  Add(4, 9, 1, /*group=*/0);  // In none.
  EXPECT_THAT(Waiting(8), UnorderedElementsAre(1, 2));
  EXPECT_THAT(Waiting(10), IsEmpty());
}

TEST_F(FinishGateTest, SoManyAsTheOptionSaysDoNotWaitForMore) {
  for (CallId call = 1; call <= 3; ++call) Add(call, 9, 1);
  Add(4, 90, 90);
  EXPECT_THAT(Waiting(3), IsEmpty());
  EXPECT_THAT(Waiting(2), UnorderedElementsAre(1, 2, 3, 4));
  together_ = 2;
  EXPECT_THAT(Waiting(2), IsEmpty());
  together_ = 0;
  EXPECT_THAT(Waiting(2), IsEmpty());
}

TEST_F(FinishGateTest, NobodyWaitsWhenLastTokensAreAllThatIsLeft) {
  for (CallId call = 1; call <= 3; ++call) Add(call, 9, 1);
  EXPECT_THAT(Waiting(1), IsEmpty());  // One step each, but none is helped by waiting.
}

TEST_F(FinishGateTest, WhoseLastTokenIsLeftComesFirstHoweverYoung) {
  together_ = 1;
  Add(1, 9, 8);
  Add(2, 9, 1);
  EXPECT_THAT(Waiting(7), IsEmpty());  // By age alone nobody could finish.
}

TEST_F(FinishGateTest, WaitsUntilItsTimeAndThenItsWholeGroupFinishes) {
  Sequence& first = Add(1, 9, 1);
  Add(2, 9, 9);
  first.wait_until = Time(std::chrono::seconds(5));
  first.num_waited = 1;
  EXPECT_THAT(Waiting(8, first.wait_until - Duration(1)), UnorderedElementsAre(1, 2));
  EXPECT_THAT(Waiting(8, first.wait_until), IsEmpty());
}

TEST_F(FinishGateTest, WhoMayNotWaitAndHasNotHurriesNobody) {
  Sequence& late = Add(1, 9, 1);
  late.wait_until = Time{};
  Add(2, 9, 1);
  Add(3, 9, 9);
  EXPECT_THAT(Waiting(8), UnorderedElementsAre(2, 3));
}

TEST_F(FinishGateTest, WaitsForAtMostEightTimesItsOwnTokens) {
  Sequence& first = Add(1, 3, 1);
  Add(2, 99, 99);
  first.num_waited = 8 * 3 - 8;
  EXPECT_THAT(Waiting(8), UnorderedElementsAre(1, 2));
  ++first.num_waited;
  EXPECT_THAT(Waiting(8), IsEmpty());
}

TEST_F(FinishGateTest, CountsTheTokensOfEachStepForThoseWithOneLeft) {
  const Sequence& waits = Add(1, 9, 1);
  const Sequence& computes = Add(2, 9, 5);
  const Sequence& other = Add(3, 9, 1);
  FinishGate::Count(running_, {1, 2}, 6);
  FinishGate::Count(running_, {1, 2}, 4);
  EXPECT_EQ(waits.num_waited, 10);
  EXPECT_EQ(computes.num_waited, 0);
  EXPECT_EQ(other.num_waited, 0);
}

}  // namespace
}  // namespace baton
