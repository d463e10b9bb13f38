#include "common/kv_cache/block_allocator.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Range(int32_t first, int32_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class BlockAllocatorTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(pool_.Audit(), ""); }

  // A table whose blocks hold `tokens`, the full ones sealed.
  BlockTable Filled(const Tokens& tokens, std::string_view tenant = "t") {
    BlockTable table = pool_.Match(tenant, tokens, static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(
        pool_.Grow(table, pool_.BlocksFor(static_cast<int64_t>(tokens.size())) - table.size()));
    pool_.Seal(table, tenant, tokens);
    return table;
  }
  BlockState StateOf(const BlockTable& table, int32_t i) { return pool_.state(table.blocks()[i]); }
  uint32_t EpochOf(BlockId id) { return pool_.epochs()[id].load(); }

  // As if the window had passed so many entries: of one token, it passes all but the last.
  void PassEntries(BlockTable& table, int32_t entries) { pool_.Pass(table, entries * 4 + 1); }

  BlockAllocator pool_{8, 4, 99, {{.tokens = 1}}};  // 8 blocks of 4 tokens.
};

TEST_F(BlockAllocatorTest, RoundsTokensUpToBlocks) {
  EXPECT_EQ(pool_.BlocksFor(0), 0);
  EXPECT_EQ(pool_.BlocksFor(1), 1);
  EXPECT_EQ(pool_.BlocksFor(4), 1);
  EXPECT_EQ(pool_.BlocksFor(5), 2);
}

TEST_F(BlockAllocatorTest, RefusesWhenFewerBlocksRemainThanAsked) {
  BlockTable held, wanting;
  ASSERT_TRUE(pool_.Grow(held, 6));
  const BlockCounts before = pool_.counts();
  EXPECT_FALSE(pool_.Grow(wanting, 3));
  EXPECT_EQ(wanting.size(), 0);
  EXPECT_EQ(pool_.counts(), before);
  EXPECT_TRUE(pool_.Grow(wanting, 2));
  EXPECT_EQ(pool_.num_available(), 0);
}

TEST_F(BlockAllocatorTest, AReservationIsWrittenOnlyAfterItsWriterHasBegun) {
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 2, /*reserved=*/true));
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 6, .reserved = 2}));
  pool_.MarkFilling(table);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 6, .filling = 2}));
  pool_.Seal(table, "t", Range(0, 7));
  EXPECT_EQ(StateOf(table, 0), BlockState::kReady);
  EXPECT_EQ(StateOf(table, 1), BlockState::kFilling);
  EXPECT_EQ(table.num_sealed(), 1);
}

TEST_F(BlockAllocatorTest, ReleaseKeepsSealedBlocksFindableAndFreesTheRest) {
  BlockTable table = Filled(Range(0, 10));
  table.Release();
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 6, .cached = 2}));
  EXPECT_EQ(pool_.Match("t", Range(0, 10), 10).num_sealed(), 2);
}

TEST_F(BlockAllocatorTest, WhatTheWindowHasPassedGoesBackAndKeepsItsPlaceInTheTable) {
  BlockTable table = Filled(Range(0, 18));
  const std::vector<BlockId> before = table.blocks();
  PassEntries(table, 3);
  EXPECT_EQ(table.blocks(), (std::vector<BlockId>{-1, -1, -1, before[3], before[4]}));
  EXPECT_EQ(table.num_passed(), 3);
  EXPECT_EQ(table.num_held(), 2);
  EXPECT_EQ(table.num_sealed(), 4);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 3, .filling = 1, .ready = 1, .cached = 3}));
  PassEntries(table, 2);  // Nothing more.
  EXPECT_EQ(table.num_held(), 2);
  EXPECT_EQ(pool_.Refs(table)[2], BlockRef{});
  EXPECT_EQ(pool_.CountUnowned({&table}), 0);
  pool_.MarkDraining(table);
  EXPECT_EQ(pool_.counts().draining, 2);
  table.Release();
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(pool_.num_available(), 8);
}

TEST_F(BlockAllocatorTest, APassedPrefixIsStillFoundFromItsStart) {
  BlockTable table = Filled(Range(0, 18));
  PassEntries(table, 3);
  EXPECT_EQ(pool_.Match("t", Range(0, 18), 18).num_sealed(), 4);
  BlockTable other = Filled(Range(0, 10));  // Evicts nothing: two of them are shared.
  PassEntries(other, 1);
  EXPECT_EQ(pool_.Match("t", Range(0, 18), 18).num_sealed(), 4);
}

TEST_F(BlockAllocatorTest, ReleasingTheFrontKeepsWhatAnotherTableHolds) {
  BlockTable one = Filled(Range(0, 9));
  BlockTable two = Filled(Range(0, 9));
  PassEntries(one, 2);
  EXPECT_EQ(StateOf(two, 0), BlockState::kReady);
  PassEntries(two, 2);
  EXPECT_EQ(pool_.counts().cached, 2);
}

TEST_F(BlockAllocatorTest, BlocksBehindSkippedOnesAreNeverFound) {
  BlockTable table;
  PassEntries(table, 2);
  EXPECT_EQ(pool_.BlocksToGrow(table, 4), 2);
  ASSERT_TRUE(pool_.Grow(table, 4, /*reserved=*/true));
  EXPECT_EQ(table.size(), 4);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 6, .reserved = 2}));
  pool_.MarkFilling(table);
  pool_.Seal(table, "t", Range(0, 16));
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 6, .ready = 2}));
  // Nor by the tokens that stand in them, as if they were a prefix.
  EXPECT_EQ(pool_.Match("t", Range(0, 16), 16).size(), 0);
  EXPECT_EQ(pool_.Match("t", Range(8, 8), 8).size(), 0);
  table.Release();
  EXPECT_EQ(pool_.counts().free, 8);
}

TEST_F(BlockAllocatorTest, AFirstBlockThatLacksItsFirstTokensIsNeverFound) {
  BlockTable table;
  pool_.Pass(table, 3);
  ASSERT_TRUE(pool_.Grow(table, 2));
  pool_.Seal(table, "t", Range(0, 8));
  EXPECT_EQ(pool_.Match("t", Range(0, 8), 8).size(), 0);
}

TEST_F(BlockAllocatorTest, AReleasedTableStartsAnewWhateverItHadSkipped) {
  BlockTable table;
  PassEntries(table, 2);
  table.Release();
  EXPECT_EQ(table.size(), 0);
  ASSERT_TRUE(pool_.Grow(table, 2));
  pool_.Seal(table, "t", Range(0, 8));
  EXPECT_EQ(pool_.Match("t", Range(0, 8), 8).num_sealed(), 2);
}

TEST_F(BlockAllocatorTest, DestructionOfATableReturnsItsBlocks) {
  {
    BlockTable table;
    ASSERT_TRUE(pool_.Grow(table, 3));
  }
  EXPECT_EQ(pool_.num_available(), 8);
}

TEST_F(BlockAllocatorTest, MovingATableMovesItsBlocksAndReleasesTheTargets) {
  BlockTable first, second;
  ASSERT_TRUE(pool_.Grow(first, 2));
  ASSERT_TRUE(pool_.Grow(second, 3));
  const std::vector<BlockId> blocks = first.blocks();
  second = std::move(first);
  EXPECT_EQ(second.blocks(), blocks);
  EXPECT_EQ(first.size(), 0);
  EXPECT_EQ(pool_.num_available(), 6);
}

TEST_F(BlockAllocatorTest, MatchTakesWholeBlocksUpToItsLimit) {
  Filled(Range(0, 12)).Release();
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 12).size(), 3);
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 11).size(), 2);
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 3).size(), 0);
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 0).size(), 0);
  EXPECT_EQ(pool_.Match("t", Range(0, 12), -1).size(), 0);
  EXPECT_EQ(pool_.Match("t", Range(0, 7), 7).size(), 1);
}

TEST_F(BlockAllocatorTest, MatchStopsAtTheFirstDifference) {
  Filled(Range(0, 12)).Release();
  Tokens other = Range(0, 12);
  other[5] = 77;
  EXPECT_EQ(pool_.Match("t", other, 12).size(), 1);
  other[0] = 77;
  EXPECT_EQ(pool_.Match("t", other, 12).size(), 0);
}

TEST_F(BlockAllocatorTest, TheSameTokensBehindAnotherPrefixDoNotMatch) {
  Tokens tokens = {1, 1, 1, 1, 2, 2, 2, 2};
  Filled(tokens).Release();
  EXPECT_EQ(pool_.Match("t", Tokens{2, 2, 2, 2}, 4).size(), 0);
  EXPECT_EQ(pool_.Match("t", Tokens{3, 3, 3, 3, 2, 2, 2, 2}, 8).size(), 0);
}

TEST_F(BlockAllocatorTest, TenantsNeverShare) {
  Filled(Range(0, 8), "alice").Release();
  EXPECT_EQ(pool_.Match("bob", Range(0, 8), 8).size(), 0);
  EXPECT_EQ(pool_.Match("", Range(0, 8), 8).size(), 0);
  EXPECT_EQ(pool_.Match("alice", Range(0, 8), 8).size(), 2);
}

TEST_F(BlockAllocatorTest, ASharedBlockLivesAsLongAsItsLastHolder) {
  BlockTable first = Filled(Range(0, 4));
  BlockTable second = pool_.Match("t", Range(0, 4), 4);
  EXPECT_EQ(second.blocks(), first.blocks());
  first.Release();
  EXPECT_EQ(pool_.counts().ready, 1);
  second.Release();
  EXPECT_EQ(pool_.counts().cached, 1);
}

TEST_F(BlockAllocatorTest, PinnedBlocksAreNeverEvicted) {
  BlockTable pinned = Filled(Range(0, 8));
  Filled(Range(100, 8)).Release();
  BlockTable rest;
  ASSERT_TRUE(pool_.Grow(rest, 6));
  EXPECT_FALSE(pool_.Grow(rest, 1));
  EXPECT_EQ(pool_.counts(), (BlockCounts{.filling = 6, .ready = 2}));
  rest.Release();
  pinned.Release();
  EXPECT_EQ(pool_.Match("t", Range(0, 8), 8).size(), 2);
  EXPECT_EQ(pool_.Match("t", Range(100, 8), 8).size(), 0);
}

TEST_F(BlockAllocatorTest, EvictsATailBeforeItsHead) {
  Filled(Range(0, 12)).Release();  // 3 CACHED, 5 FREE.
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 6));
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 12).size(), 2);
  ASSERT_TRUE(pool_.Grow(table, 1));
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 12).size(), 1);
}

TEST_F(BlockAllocatorTest, EvictsTheLeastRecentlyUsedFirst) {
  Filled(Range(0, 4)).Release();
  Filled(Range(100, 4)).Release();
  pool_.Match("t", Range(0, 4), 4).Release();  // Now the other one is the oldest.
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 7));
  EXPECT_EQ(pool_.Match("t", Range(100, 4), 4).size(), 0);
  EXPECT_EQ(pool_.Match("t", Range(0, 4), 4).size(), 1);
}

TEST_F(BlockAllocatorTest, EvictsATailBeforeItsHeadWhenTheWindowPassedIt) {
  BlockTable passed = Filled(Range(0, 12));
  PassEntries(passed, 3);
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 6));
  EXPECT_EQ(pool_.Match("t", Range(0, 12), 12).size(), 2);
}

TEST_F(BlockAllocatorTest, TakesFreeBlocksBeforeItEvicts) {
  Filled(Range(0, 16)).Release();
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 4));
  EXPECT_EQ(pool_.counts().cached, 4);
}

TEST_F(BlockAllocatorTest, ABlockWhoseContentIsCachedAlreadyStaysPrivate) {
  BlockTable first = Filled(Range(0, 4));
  BlockTable twin;
  ASSERT_TRUE(pool_.Grow(twin, 1));
  pool_.Seal(twin, "t", Range(0, 4));
  EXPECT_EQ(StateOf(twin, 0), BlockState::kReady);
  EXPECT_EQ(pool_.Match("t", Range(0, 4), 4).blocks(), first.blocks());
  twin.Release();
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 7, .ready = 1}));
}

TEST_F(BlockAllocatorTest, EpochsChangeWhenABlockIsGivenOutAndWhenItIsSealed) {
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 2, /*reserved=*/true));
  const std::vector<BlockRef> promised = pool_.Refs(table);
  const BlockId id = table.blocks()[0];
  EXPECT_EQ(promised[0], (BlockRef{id, EpochOf(id)}));
  pool_.MarkFilling(table);
  EXPECT_EQ(EpochOf(id), promised[0].epoch);
  pool_.Seal(table, "t", Range(0, 4));
  EXPECT_NE(EpochOf(id), promised[0].epoch);
  EXPECT_EQ(EpochOf(table.blocks()[1]), promised[1].epoch);

  const BlockId unsealed = table.blocks()[1];
  table.Release();
  BlockTable next;
  ASSERT_TRUE(pool_.Grow(next, 8));
  EXPECT_NE(EpochOf(unsealed), promised[1].epoch);
}

TEST_F(BlockAllocatorTest, SealingGoesOnWhereItStopped) {
  const Tokens tokens = Range(0, 12);
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 3));
  pool_.Seal(table, "t", std::span(tokens).first(5));
  EXPECT_EQ(table.num_sealed(), 1);
  const uint32_t epoch = EpochOf(table.blocks()[0]);
  pool_.Seal(table, "t", std::span(tokens).first(5));
  pool_.Seal(table, "t", tokens);
  EXPECT_EQ(EpochOf(table.blocks()[0]), epoch);
  EXPECT_EQ(table.num_sealed(), 3);
  EXPECT_EQ(pool_.Match("t", tokens, 12).size(), 3);
}

TEST_F(BlockAllocatorTest, DrainingBlocksAreNeitherFreeNorShared) {
  BlockTable table = Filled(Range(0, 6));
  pool_.MarkDraining(table);
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 6, .draining = 2}));
  EXPECT_EQ(pool_.Match("t", Range(0, 6), 6).size(), 0);
  EXPECT_EQ(pool_.num_available(), 6);
  table.Release();
  EXPECT_EQ(pool_.counts(), (BlockCounts{.free = 7, .cached = 1}));
  EXPECT_EQ(pool_.Match("t", Range(0, 6), 6).size(), 1);
}

TEST_F(BlockAllocatorTest, DrainingLeavesSharedBlocksToTheOthers) {
  BlockTable first = Filled(Range(0, 4));
  BlockTable second = pool_.Match("t", Range(0, 4), 4);
  pool_.MarkDraining(first);
  EXPECT_EQ(StateOf(second, 0), BlockState::kReady);
  EXPECT_EQ(pool_.Match("t", Range(0, 4), 4).size(), 1);
  first.Release();
  EXPECT_EQ(pool_.counts().ready, 1);
}

TEST_F(BlockAllocatorTest, RenewedBlocksAreReservedAgainUnderANewEpoch) {
  BlockTable table = Filled(Range(0, 6));  // One sealed block, one that is being filled.
  const uint32_t sealed = EpochOf(table.blocks()[0]);
  const uint32_t open = EpochOf(table.blocks()[1]);
  pool_.Renew(table);
  EXPECT_EQ(EpochOf(table.blocks()[0]), sealed);
  EXPECT_EQ(StateOf(table, 0), BlockState::kReady);
  EXPECT_NE(EpochOf(table.blocks()[1]), open);
  EXPECT_EQ(StateOf(table, 1), BlockState::kReserved);
  pool_.MarkFilling(table);
  EXPECT_EQ(StateOf(table, 0), BlockState::kReady);
  EXPECT_EQ(StateOf(table, 1), BlockState::kFilling);
}

TEST_F(BlockAllocatorTest, AMovedTableIsStillNotFindableAndStillDrains) {
  BlockTable skipped;
  PassEntries(skipped, 1);
  BlockTable moved = std::move(skipped);
  ASSERT_TRUE(pool_.Grow(moved, 2));
  pool_.Seal(moved, "t", Range(0, 8));
  moved.Release();
  EXPECT_EQ(pool_.Match("t", Range(0, 8), 8).size(), 0);
  EXPECT_EQ(pool_.counts().cached, 0);

  BlockTable draining = Filled(Range(0, 4));
  pool_.MarkDraining(draining);
  BlockTable drains_on = std::move(draining);
  EXPECT_DEATH(pool_.Grow(drains_on, 1), "");
  drains_on.Release();
  EXPECT_TRUE(pool_.Grow(drains_on, 1));  // It begins anew.
}

TEST_F(BlockAllocatorTest, ATableMovedToItselfKeepsItsBlocks) {
  BlockTable table = Filled(Range(0, 6));
  BlockTable& same = table;
  table = std::move(same);
  EXPECT_EQ(table.size(), 2);
}

TEST_F(BlockAllocatorTest, CountsAnUnownedBlockOnceAndASharedOneOnce) {
  BlockTable one = Filled(Range(0, 8));
  BlockTable two = pool_.Match("t", Range(0, 8), 8);
  ASSERT_EQ(two.size(), 2);
  EXPECT_EQ(pool_.CountUnowned({&one, &two}), 0);
  EXPECT_EQ(pool_.CountUnowned({}), 2);
  BlockTable other = Filled(Range(100, 4));
  EXPECT_EQ(pool_.CountUnowned({&two}), 1);
}

TEST_F(BlockAllocatorTest, ATableThatDrainsMustNotGrow) {
  BlockTable table;
  ASSERT_TRUE(pool_.Grow(table, 1));
  pool_.MarkDraining(table);
  EXPECT_DEATH(pool_.Grow(table, 1), "check failed");
}

TEST_F(BlockAllocatorTest, WhatIsNotFinalIsNeitherPassedNorSealedTwice) {
  BlockTable table = Filled(Range(0, 6));
  EXPECT_DEATH(PassEntries(table, 2), "check failed");
  EXPECT_DEATH(pool_.Seal(table, "t", Range(0, 12)), "check failed");
  EXPECT_DEATH(pool_.Grow(table, -1), "check failed");
  BlockTable reserved;
  ASSERT_TRUE(pool_.Grow(reserved, 1, /*reserved=*/true));
  EXPECT_DEATH(pool_.Seal(reserved, "t", Range(0, 4)), "check failed");  // Nobody has written it.
  pool_.MarkDraining(table);
  EXPECT_DEATH(PassEntries(table, 1), "check failed");
  EXPECT_DEATH(pool_.Renew(table), "check failed");
}

TEST(BlockAllocatorDeathTest, ATableMustNotOutliveItsAllocator) {
  EXPECT_DEATH(
      {
        BlockTable table;
        BlockAllocator pool(2, 4, 1);
        pool.Grow(table, 1);
      },
      "check failed");
}

}  // namespace
}  // namespace baton
