#include "common/transport/nccl/receiving_batches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/common/transport/nccl/batch_words.h"

namespace baton::nccl {
namespace {

using ::testing::Test;

class ReceivingBatchesTest : public Test {
 protected:
  ReceivingBatchesTest() {
    for (ReceivingBatches* batches : {&batches_, &single_}) {
      batches->AddPair(kPair);
      batches->AddPair(kOther);
    }
  }
  static void ToReady(ReceivingBatches& batches, BatchKey key, int frames = 1) {
    batches.OnAnnounce(key, frames, FirstFrames(frames));
    batches.OnReady(key, 1, std::vector<uint64_t>(frames, 7));
  }
  static void ToPosted(ReceivingBatches& batches, BatchKey key, int frames = 1) {
    ToReady(batches, key, frames);
    batches.OnPosted(key);
  }
  ReceivingBatches batches_{4};
  ReceivingBatches single_{1};  // One slot.
};

TEST_F(ReceivingBatchesTest, OneBatchGoesThroughAllSteps) {
  const Actions announced = batches_.OnAnnounce(kFirst, 2, FirstFrames(2));
  ASSERT_EQ(KindsOf(announced), Kinds{Kind::kGrant});
  EXPECT_EQ(announced[0].grant, 1u);
  EXPECT_EQ(KindsOf(batches_.OnReady(kFirst, 1, {7, 8})), Kinds{Kind::kReceive});
  const Actions posted = batches_.OnPosted(kFirst);
  ASSERT_EQ(KindsOf(posted), Kinds{Kind::kPosted});
  EXPECT_EQ(posted[0].grant, 1u);
  EXPECT_EQ(KindsOf(batches_.OnReceived(kFirst)), Kinds{Kind::kSum});
  const Actions summed = batches_.OnSummed(kFirst, {7, 8});
  ASSERT_EQ(KindsOf(summed), Kinds{Kind::kScatter});
  EXPECT_EQ(summed[0].frames, FirstFrames(2));
  EXPECT_EQ(batches_.slots().free(), 3);
  const Actions ended = batches_.OnScattered(kFirst, FirstFrames(1));
  ASSERT_EQ(KindsOf(ended), Kinds{Kind::kAck});
  EXPECT_EQ(ended[0].frames, FirstFrames(1)) << "what was launched, not what was sent";
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(ReceivingBatchesTest, FramesWithWrongSumsAreNotScattered) {
  ToPosted(batches_, kFirst, 2);
  batches_.OnReceived(kFirst);
  const Actions summed = batches_.OnSummed(kFirst, {7, 0});
  ASSERT_EQ(KindsOf(summed), (Kinds{Kind::kSpoiled, Kind::kScatter}));
  EXPECT_EQ(summed[0].frames, FirstFrames(2) & ~FirstFrames(1));
  EXPECT_EQ(summed[1].frames, FirstFrames(1));
}

TEST_F(ReceivingBatchesTest, ABatchOfWrongSumsIsOverWithoutAScatter) {
  ToPosted(batches_, kFirst);
  batches_.OnReceived(kFirst);
  EXPECT_EQ(KindsOf(batches_.OnSummed(kFirst, {0})), (Kinds{Kind::kSpoiled, Kind::kAck}));
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(ReceivingBatchesTest, FramesThatMayNotLandAreNeverScattered) {
  FrameSet live = FirstFrames(3);
  live.reset(0);
  batches_.OnAnnounce(kFirst, 3, live);
  batches_.OnReady(kFirst, 1, {7, 7, 7});
  batches_.OnPosted(kFirst);
  FrameSet dropped;
  dropped.set(2);
  EXPECT_TRUE(batches_.DropFrames(kFirst, dropped).empty()) << "a posted receive stays";
  batches_.OnReceived(kFirst);
  const Actions summed = batches_.OnSummed(kFirst, {0, 7, 0});
  ASSERT_EQ(KindsOf(summed), Kinds{Kind::kScatter}) << "sums of frames that are over do not matter";
  EXPECT_EQ(summed[0].frames, FirstFrames(2) & ~FirstFrames(1));
}

TEST_F(ReceivingBatchesTest, ABatchWithNothingLeftIsRefusedUnlessPosted) {
  EXPECT_EQ(KindsOf(batches_.OnAnnounce(kFirst, 1, {})), Kinds{Kind::kRefuse});
  batches_.OnAnnounce(kSecond, 1, FirstFrames(1));
  EXPECT_EQ(KindsOf(batches_.DropFrames(kSecond, FirstFrames(1))), Kinds{Kind::kRefuse});
  EXPECT_EQ(batches_.slots().free(), 4);
  EXPECT_TRUE(batches_.OnReady(kSecond, 1, {7}).empty()) << "it crossed the refusal";
}

TEST_F(ReceivingBatchesTest, ReceivesOfOnePairAtATimeArePostedAndPairsTakeTurns) {
  ToPosted(batches_, kFirst);
  batches_.OnAnnounce(kSecond, 1, FirstFrames(1));
  batches_.OnAnnounce(kOthers, 1, FirstFrames(1));
  EXPECT_TRUE(batches_.OnReady(kSecond, 1, {7}).empty());
  EXPECT_TRUE(batches_.OnReady(kOthers, 1, {7}).empty());
  const Actions received = batches_.OnReceived(kFirst);
  ASSERT_EQ(KindsOf(received), (Kinds{Kind::kSum, Kind::kReceive}));
  EXPECT_EQ(received[1].key, kOthers) << "the other pair comes before the first one's next batch";
}

TEST_F(ReceivingBatchesTest, BothReadyBatchesOfAPairArePostedInOrder) {
  ToPosted(batches_, kOthers);
  ToReady(batches_, kFirst);
  ToReady(batches_, kSecond);
  const Actions received = batches_.OnReceived(kOthers);
  ASSERT_EQ(KindsOf(received), (Kinds{Kind::kSum, Kind::kReceive, Kind::kReceive}));
  EXPECT_EQ(received[1].key, kFirst);
  EXPECT_EQ(received[2].key, kSecond);
}

TEST_F(ReceivingBatchesTest, SlotsGoAroundThePairs) {
  single_.OnAnnounce(kFirst, 1, FirstFrames(1));
  single_.OnAnnounce(kSecond, 1, FirstFrames(1));
  single_.OnAnnounce(kOthers, 1, FirstFrames(1));
  const Actions freed = single_.DropFrames(kFirst, FirstFrames(1));
  ASSERT_EQ(KindsOf(freed), (Kinds{Kind::kRefuse, Kind::kGrant}));
  EXPECT_EQ(freed[1].key, kOthers);
}

TEST_F(ReceivingBatchesTest, AnUnusedGrantIsTakenBackOnlyForOthersAndGivenAgain) {
  single_.OnAnnounce(kFirst, 1, FirstFrames(1));
  single_.OnAnnounce(kSecond, 1, FirstFrames(1));
  EXPECT_TRUE(single_.OnGrantUnused(kFirst, 1).empty()) << "no other pair waits";
  single_.OnAnnounce(kOthers, 1, FirstFrames(1));
  const Actions revoked = single_.OnGrantUnused(kFirst, 1);
  ASSERT_EQ(KindsOf(revoked), (Kinds{Kind::kRevoke, Kind::kGrant}));
  EXPECT_EQ(revoked[1].key, kOthers);
  EXPECT_TRUE(single_.OnReady(kFirst, 1, {7}).empty()) << "it crossed the revocation";
  const Actions again = single_.DropFrames(kOthers, FirstFrames(1));
  ASSERT_EQ(KindsOf(again), (Kinds{Kind::kRefuse, Kind::kGrant}));
  EXPECT_EQ(again[1].key, kFirst);
  EXPECT_EQ(again[1].grant, 2u);
  EXPECT_TRUE(single_.OnReady(kFirst, 1, {7}).empty()) << "still of the first grant";
  EXPECT_EQ(KindsOf(single_.OnReady(kFirst, 2, {7})), Kinds{Kind::kReceive});
}

TEST_F(ReceivingBatchesTest, AGrantThatIsUsedStays) {
  ToReady(single_, kFirst);
  single_.OnAnnounce(kOthers, 1, FirstFrames(1));
  EXPECT_TRUE(single_.OnGrantUnused(kFirst, 1).empty());
}

TEST_F(ReceivingBatchesTest, WordsThatDoNotFitCondemnThePair) {
  using Word = Actions (*)(ReceivingBatches&);
  const Word words[] = {
      [](ReceivingBatches& b) { return b.OnAnnounce(kFirst, 1, FirstFrames(1)); },
      [](ReceivingBatches& b) { return b.OnAnnounce({kPair, 3}, 1, FirstFrames(1)); },
      [](ReceivingBatches& b) { return b.OnAnnounce(kSecond, 0, {}); },
      [](ReceivingBatches& b) { return b.OnAnnounce(kSecond, kMaxBatchFrames + 1, {}); },
      [](ReceivingBatches& b) { return b.OnReady(kFirst, 0, {7}); },
      [](ReceivingBatches& b) { return b.OnReady(kFirst, 2, {7}); },
      [](ReceivingBatches& b) { return b.OnReady(kFirst, 1, {}); },
      [](ReceivingBatches& b) { return b.OnReady(kFirst, 1, {7, 7}); },
      [](ReceivingBatches& b) { return b.OnReady(kSecond, 1, {7}); },
      [](ReceivingBatches& b) { return b.OnReady({kPair, 0}, 1, {7}); },
  };
  for (const Word word : words) {
    ReceivingBatches batches(1);
    batches.AddPair(kPair);
    batches.OnAnnounce(kFirst, 1, FirstFrames(1));
    EXPECT_EQ(KindsOf(word(batches)), Kinds{Kind::kCondemn});
    EXPECT_EQ(batches.slots().free(), 1) << "nothing was launched";
    EXPECT_EQ(batches.open(kPair), 0);
  }
}

TEST_F(ReceivingBatchesTest, AThirdOpenBatchOrASecondReadyCondemns) {
  ToReady(batches_, kFirst);
  EXPECT_EQ(KindsOf(batches_.OnReady(kFirst, 1, {7})), Kinds{Kind::kCondemn});
  batches_.OnAnnounce(kOthers, 1, FirstFrames(1));
  batches_.OnAnnounce({kOther, 2}, 1, FirstFrames(1));
  EXPECT_EQ(KindsOf(batches_.OnAnnounce({kOther, 3}, 1, FirstFrames(1))), Kinds{Kind::kCondemn});
}

TEST_F(ReceivingBatchesTest, ADeadPairHoldsTheStreamUntilItsEventAndItsAbort) {
  ToPosted(batches_, kFirst);
  ToReady(batches_, kOthers);
  EXPECT_TRUE(batches_.Kill(kPair).empty());
  EXPECT_TRUE(batches_.OnReceived(kFirst).empty());
  const Actions aborted = batches_.OnAborted(kPair);
  ASSERT_EQ(KindsOf(aborted), Kinds{Kind::kReceive});
  EXPECT_EQ(aborted[0].key, kOthers);
  EXPECT_EQ(batches_.slots().free(), 3);
  batches_.RemovePair(kPair);
  EXPECT_TRUE(batches_.OnReceived(kFirst).empty());
}

// A pair's first receive is posted when it has begun, and again when it is on the stream.
TEST_F(ReceivingBatchesTest, WhatIsPostedTwiceIsSaidOnce) {
  ToReady(batches_, kFirst);
  EXPECT_EQ(KindsOf(batches_.OnPosted(kFirst)), Kinds{Kind::kPosted});
  EXPECT_TRUE(batches_.OnPosted(kFirst).empty());
  EXPECT_EQ(KindsOf(batches_.OnReceived(kFirst)), Kinds{Kind::kSum});
}

TEST_F(ReceivingBatchesTest, APairThatDiesBetweenBothKeepsItsSlotUntilItsEventAndItsAbort) {
  ToPosted(batches_, kFirst);
  ToReady(batches_, kOthers);
  EXPECT_TRUE(batches_.Kill(kPair).empty()) << "the stream is taken, though nothing is on it";
  EXPECT_TRUE(batches_.OnPosted(kFirst).empty());
  EXPECT_TRUE(batches_.OnAborted(kPair).empty());
  EXPECT_EQ(batches_.slots().free(), 2);
  EXPECT_EQ(KindsOf(batches_.OnReceived(kFirst)), Kinds{Kind::kReceive});
  EXPECT_EQ(batches_.slots().free(), 3);
}

TEST_F(ReceivingBatchesTest, AnAbortThatDoesNotReturnLeaksTheSlotAndLetsOthersGoOn) {
  ToPosted(batches_, kFirst);
  ToReady(batches_, kOthers);
  batches_.Kill(kPair);
  EXPECT_EQ(KindsOf(batches_.OnAbortStuck(kPair)), Kinds{Kind::kReceive});
  EXPECT_EQ(batches_.slots().leaked(), 1);
  EXPECT_TRUE(batches_.OnReceived(kFirst).empty());
  EXPECT_EQ(batches_.slots().leaked(), 1) << "a late event does not bring the slot back";
}

// Another pair's abort hangs while the library has this one's receive, but has not posted it yet.
TEST_F(ReceivingBatchesTest, AReceiveThatIsPostedAfterItsSlotWasLeakedIsNobodys) {
  ToReady(batches_, kFirst);
  batches_.Kill(kPair);
  batches_.OnAbortStuck(kPair);
  EXPECT_EQ(batches_.slots().leaked(), 1);
  EXPECT_TRUE(batches_.OnPosted(kFirst).empty());
  EXPECT_TRUE(batches_.OnReceived(kFirst).empty());
  EXPECT_EQ(batches_.slots().leaked(), 1);
}

TEST_F(ReceivingBatchesTest, KernelsOfADeadPairKeepTheirSlotsUntilTheyEnd) {
  ToPosted(batches_, kFirst);
  ToReady(batches_, kSecond);
  batches_.OnReceived(kFirst);
  batches_.OnSummed(kFirst, {7});
  batches_.OnPosted(kSecond);
  batches_.OnReceived(kSecond);
  batches_.Kill(kPair);
  batches_.OnAborted(kPair);
  EXPECT_EQ(batches_.slots().free(), 2);
  EXPECT_TRUE(batches_.OnScattered(kFirst, FirstFrames(1)).empty()) << "nobody is there to hear";
  EXPECT_TRUE(batches_.OnSummed(kSecond, {7}).empty()) << "and nothing is launched any more";
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(ReceivingBatchesTest, ThePeersLifeCountsWhileItHasAGrantOrAPostedReceive) {
  EXPECT_FALSE(batches_.AwaitsPeer(kPair));
  batches_.OnAnnounce(kFirst, 1, FirstFrames(1));
  EXPECT_TRUE(batches_.AwaitsPeer(kPair));
  batches_.OnReady(kFirst, 1, {7});
  batches_.OnPosted(kFirst);
  EXPECT_TRUE(batches_.AwaitsPeer(kPair));
  batches_.OnReceived(kFirst);
  EXPECT_FALSE(batches_.AwaitsPeer(kPair));
}

}  // namespace
}  // namespace baton::nccl
