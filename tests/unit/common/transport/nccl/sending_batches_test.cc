#include "common/transport/nccl/sending_batches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/common/transport/nccl/batch_words.h"

namespace baton::nccl {
namespace {

using ::testing::Test;

class SendingBatchesTest : public Test {
 protected:
  SendingBatchesTest() {
    batches_.AddPair(kPair);
    batches_.AddPair(kOther);
  }
  void ToReady() {
    batches_.Announce(kPair, 2);
    batches_.OnGrant(kFirst, 1);
    batches_.OnGathered(kFirst, {7, 8});
  }
  void ToPosted() {
    ToReady();
    batches_.OnPosted(kFirst, 1);
  }
  SendingBatches batches_{4};
};

TEST_F(SendingBatchesTest, OneBatchGoesThroughAllSteps) {
  const Actions announced = batches_.Announce(kPair, 2);
  EXPECT_EQ(KindsOf(announced), Kinds{Kind::kAnnounce});
  EXPECT_EQ(announced[0].key, kFirst);
  const Actions granted = batches_.OnGrant(kFirst, 1);
  EXPECT_EQ(KindsOf(granted), Kinds{Kind::kGather});
  const Actions gathered = batches_.OnGathered(kFirst, {7, 8});
  ASSERT_EQ(KindsOf(gathered), Kinds{Kind::kReady});
  EXPECT_EQ(gathered[0].sums, (std::vector<uint64_t>{7, 8}));
  EXPECT_EQ(gathered[0].grant, 1u);
  const Actions posted = batches_.OnPosted(kFirst, 1);
  ASSERT_EQ(KindsOf(posted), Kinds{Kind::kSend});
  EXPECT_EQ(posted[0].slot, granted[0].slot);
  const Actions ended = batches_.OnAck(kFirst, FirstFrames(2));
  ASSERT_EQ(KindsOf(ended), Kinds{Kind::kEnded});
  EXPECT_EQ(ended[0].frames, FirstFrames(2));
  EXPECT_EQ(batches_.slots().free(), 3) << "the ack is a peer's word: NCCL may still read";
  batches_.OnSent(kFirst);
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(SendingBatchesTest, ASlotIsKeptUntilTheAckToo) {
  ToPosted();
  batches_.OnSent(kFirst);
  EXPECT_EQ(batches_.slots().free(), 3);
  batches_.OnAck(kFirst, {});
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(SendingBatchesTest, APairHasTwoBatchesAndARankItsSlots) {
  batches_.Announce(kPair, 1);
  batches_.Announce(kPair, 1);
  EXPECT_FALSE(batches_.CanAnnounce(kPair));
  batches_.Announce(kOther, 1);
  EXPECT_TRUE(batches_.CanAnnounce(kOther));
  batches_.Announce(kOther, 1);
  batches_.AddPair(3);
  EXPECT_FALSE(batches_.CanAnnounce(3)) << "no slot is free";
  EXPECT_FALSE(batches_.CanAnnounce(9)) << "no such pair";
}

TEST_F(SendingBatchesTest, ABatchThatIsOverAndNotQuietCountsForItsPair) {
  ToPosted();
  batches_.Announce(kPair, 1);
  batches_.OnAck(kFirst, {});
  EXPECT_FALSE(batches_.CanAnnounce(kPair));
  batches_.OnSent(kFirst);
  EXPECT_TRUE(batches_.CanAnnounce(kPair));
}

TEST_F(SendingBatchesTest, ARevokedGrantIsGivenAgainWithoutASecondGather) {
  ToReady();
  EXPECT_TRUE(batches_.OnRevoke(kFirst, 1).empty());
  const Actions again = batches_.OnGrant(kFirst, 2);
  ASSERT_EQ(KindsOf(again), Kinds{Kind::kReady});
  EXPECT_EQ(again[0].grant, 2u);
  EXPECT_EQ(again[0].sums, (std::vector<uint64_t>{7, 8}));
}

TEST_F(SendingBatchesTest, AGatherThatEndsBetweenGrantsSaysReadyWithTheNextOnly) {
  batches_.Announce(kPair, 1);
  batches_.OnGrant(kFirst, 1);
  batches_.OnRevoke(kFirst, 1);
  EXPECT_TRUE(batches_.OnGathered(kFirst, {7}).empty());
  EXPECT_EQ(KindsOf(batches_.OnGrant(kFirst, 2)), Kinds{Kind::kReady});
}

TEST_F(SendingBatchesTest, ARefusedBatchKeepsItsSlotWhileItsGatherRuns) {
  batches_.Announce(kPair, 1);
  batches_.OnGrant(kFirst, 1);
  EXPECT_EQ(KindsOf(batches_.OnRefuse(kFirst)), Kinds{Kind::kEnded});
  EXPECT_EQ(batches_.slots().free(), 3);
  EXPECT_TRUE(batches_.OnGathered(kFirst, {7}).empty());
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(SendingBatchesTest, WordsThatDoNotFitCondemnThePair) {
  using Word = Actions (*)(SendingBatches&);
  const Word at_announced[] = {
      [](SendingBatches& b) { return b.OnGrant(kFirst, 0); },
      [](SendingBatches& b) { return b.OnGrant(kSecond, 1); },
      [](SendingBatches& b) { return b.OnRevoke(kFirst, 0); },
      [](SendingBatches& b) { return b.OnRevoke(kFirst, 1); },
      [](SendingBatches& b) { return b.OnPosted(kFirst, 0); },
      [](SendingBatches& b) { return b.OnAck(kFirst, {}); },
      [](SendingBatches& b) { return b.OnRefuse(kSecond); },
  };
  for (const Word word : at_announced) {
    SendingBatches batches(1);
    batches.AddPair(kPair);
    batches.Announce(kPair, 1);
    EXPECT_EQ(KindsOf(word(batches)), (Kinds{Kind::kCondemn, Kind::kLost}));
    EXPECT_EQ(batches.slots().free(), 1) << "nothing was launched";
  }
}

TEST_F(SendingBatchesTest, WordsAfterPostedThatDoNotFitCondemnThePair) {
  using Word = Actions (*)(SendingBatches&);
  const Word at_posted[] = {
      [](SendingBatches& b) { return b.OnGrant(kFirst, 2); },
      [](SendingBatches& b) { return b.OnRevoke(kFirst, 1); },
      [](SendingBatches& b) { return b.OnPosted(kFirst, 1); },
      [](SendingBatches& b) { return b.OnRefuse(kFirst); },
      [](SendingBatches& b) { return b.OnAck(kFirst, FirstFrames(2)); },
  };
  for (const Word word : at_posted) {
    SendingBatches batches(1);
    batches.AddPair(kPair);
    batches.Announce(kPair, 1);
    batches.OnGrant(kFirst, 1);
    batches.OnGathered(kFirst, {7});
    batches.OnPosted(kFirst, 1);
    EXPECT_EQ(KindsOf(word(batches)), (Kinds{Kind::kCondemn, Kind::kLost}));
  }
}

TEST_F(SendingBatchesTest, APostedWordOfAnOlderGrantOrBeforeReadyCondemns) {
  batches_.Announce(kPair, 1);
  batches_.OnGrant(kFirst, 1);
  EXPECT_EQ(KindsOf(batches_.OnPosted(kFirst, 1)), (Kinds{Kind::kCondemn, Kind::kLost}));
  SendingBatches other(1);
  other.AddPair(kPair);
  other.Announce(kPair, 1);
  other.OnGrant(kFirst, 1);
  other.OnGathered(kFirst, {7});
  other.OnRevoke(kFirst, 1);
  other.OnGrant(kFirst, 2);
  EXPECT_EQ(KindsOf(other.OnPosted(kFirst, 1)), (Kinds{Kind::kCondemn, Kind::kLost}));
}

TEST_F(SendingBatchesTest, GrantsOfABatchAscend) {
  ToReady();
  batches_.OnRevoke(kFirst, 1);
  EXPECT_EQ(KindsOf(batches_.OnGrant(kFirst, 1)), (Kinds{Kind::kCondemn, Kind::kLost}));
}

TEST_F(SendingBatchesTest, ADeadPairsSlotWaitsForTheEventAndTheAbort) {
  ToPosted();
  EXPECT_EQ(KindsOf(batches_.Kill(kPair)), Kinds{Kind::kLost});
  EXPECT_TRUE(batches_.Kill(kPair).empty());
  batches_.OnSent(kFirst);
  EXPECT_EQ(batches_.slots().free(), 3);
  batches_.OnAborted(kPair);
  EXPECT_EQ(batches_.slots().free(), 4);
  batches_.RemovePair(kPair);
  batches_.OnSent(kFirst);
}

TEST_F(SendingBatchesTest, AnAbortThatReturnsDoesNotStandForTheEvent) {
  ToPosted();
  batches_.Kill(kPair);
  batches_.OnAborted(kPair);
  EXPECT_EQ(batches_.slots().free(), 3);
  batches_.OnSent(kFirst);
  EXPECT_EQ(batches_.slots().free(), 4);
}

TEST_F(SendingBatchesTest, AnAbortThatDoesNotReturnLeaksTheSlotForEver) {
  ToPosted();
  batches_.Kill(kPair);
  batches_.OnAbortStuck(kPair);
  EXPECT_EQ(batches_.slots().leaked(), 1);
  batches_.OnSent(kFirst);
  EXPECT_EQ(batches_.slots().leaked(), 1);
  EXPECT_EQ(batches_.slots().free(), 3);
}

TEST_F(SendingBatchesTest, WordsForADeadPairAreIgnoredAndOthersGoOn) {
  batches_.Announce(kPair, 1);
  batches_.Announce(kOther, 1);
  batches_.Kill(kPair);
  EXPECT_TRUE(batches_.OnGrant(kFirst, 1).empty());
  EXPECT_FALSE(batches_.CanAnnounce(kPair));
  EXPECT_EQ(KindsOf(batches_.OnGrant({kOther, 1}, 1)), Kinds{Kind::kGather});
}

TEST_F(SendingBatchesTest, TheDeadlineRunsInGathersAndFromPostedOn) {
  batches_.Announce(kPair, 1);
  EXPECT_FALSE(batches_.DeadlineRuns(kPair)) << "others may come first";
  batches_.OnGrant(kFirst, 1);
  EXPECT_TRUE(batches_.DeadlineRuns(kPair));
  batches_.OnGathered(kFirst, {7});
  EXPECT_FALSE(batches_.DeadlineRuns(kPair)) << "the turn is others'";
  batches_.OnPosted(kFirst, 1);
  EXPECT_TRUE(batches_.DeadlineRuns(kPair));
  batches_.OnSent(kFirst);
  EXPECT_TRUE(batches_.DeadlineRuns(kPair));
  batches_.OnAck(kFirst, {});
  EXPECT_FALSE(batches_.DeadlineRuns(kPair));
}

}  // namespace
}  // namespace baton::nccl
