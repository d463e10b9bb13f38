#include "router/room_claims.h"

#include <chrono>

#include "gtest/gtest.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RoomClaimsTest : public testing::Test {
 protected:
  Time now_{};
  SequenceBuilder sequences_;
  SequenceState& first_ = sequences_.New();
  SequenceState& second_ = sequences_.New();
  SequenceState& third_ = sequences_.New();
  RoomClaims claims_{seconds(1)};
};

TEST_F(RoomClaimsTest, KeepsTheWorkerFromYoungerOnesForAWhile) {
  claims_.Keep(second_, 7, now_);
  EXPECT_TRUE(claims_.Admits(first_, 7, now_));
  EXPECT_TRUE(claims_.Admits(second_, 7, now_));
  EXPECT_FALSE(claims_.Admits(third_, 7, now_));
  EXPECT_TRUE(claims_.Admits(third_, 8, now_)) << "another worker";
  EXPECT_EQ(claims_.NextEnd(now_), now_ + seconds(1));
  now_ += seconds(1);
  EXPECT_TRUE(claims_.Admits(third_, 7, now_));
  EXPECT_EQ(claims_.NextEnd(now_), kNever);
}

TEST_F(RoomClaimsTest, BetterClassesAndWhatWasUnderWayAreNotKeptOut) {
  claims_.Keep(first_, 7, now_);
  EXPECT_TRUE(claims_.Admits(sequences_.New(-1), 7, now_));
  EXPECT_FALSE(claims_.Admits(sequences_.New(1), 7, now_));
  third_.charged = 5;
  EXPECT_TRUE(claims_.Admits(third_, 7, now_));
}

TEST_F(RoomClaimsTest, ASequenceHasOneClaimWhichItsNextRefusalRenews) {
  claims_.Keep(first_, 7, now_);
  now_ += milliseconds(600);
  claims_.Keep(first_, 8, now_);
  EXPECT_TRUE(claims_.Admits(third_, 8, now_));
  claims_.Keep(first_, 7, now_);
  now_ += milliseconds(600);
  EXPECT_FALSE(claims_.Admits(third_, 7, now_));
  now_ += seconds(1);
  claims_.Keep(first_, 8, now_);
  EXPECT_FALSE(claims_.Admits(third_, 8, now_)) << "the claim before has ended";
}

TEST_F(RoomClaimsTest, AWorkerIsKeptForTheOldest) {
  claims_.Keep(second_, 7, now_);
  claims_.Keep(third_, 7, now_);
  EXPECT_FALSE(claims_.Admits(third_, 7, now_));
  claims_.Keep(first_, 7, now_);
  EXPECT_FALSE(claims_.Admits(second_, 7, now_));
  claims_.Release(second_);
  EXPECT_FALSE(claims_.Admits(second_, 7, now_));
  claims_.Release(first_);
  EXPECT_TRUE(claims_.Admits(third_, 7, now_));
}

}  // namespace
}  // namespace baton
