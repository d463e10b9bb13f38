// Tables of several groups of layers: the first sees all tokens, the second a window of 6 tokens,
// beside which 4 more are kept. Blocks of 4 tokens.

#include <numeric>
#include <vector>

#include "common/kv_cache/block_allocator.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

class GroupedTablesTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(pool_.Audit(), ""); }

  static std::vector<int32_t> Tokens(int32_t count) {
    std::vector<int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
  }
  // Computed from its first token on, nothing passed.
  BlockTable Computed(int32_t num_tokens) {
    BlockTable table;
    EXPECT_TRUE(pool_.Grow(table, pool_.BlocksFor(num_tokens)));
    pool_.Seal(table, "t", Tokens(num_tokens));
    return table;
  }
  // As a handoff of all of them brings it to a worker that has none.
  BlockTable Received(int32_t num_tokens) {
    BlockTable table;
    pool_.Pass(table, num_tokens);
    EXPECT_TRUE(pool_.Grow(table, pool_.BlocksFor(num_tokens)));
    pool_.Seal(table, "t", Tokens(num_tokens));
    return table;
  }
  BlockTable Match(int32_t num_tokens, MatchFor purpose) {
    return pool_.Match("t", Tokens(num_tokens), num_tokens - 1, purpose);
  }

  BlockAllocator pool_{32, 4, 7, {{}, {.tokens = 6, .spare = 4}}};
};

TEST_F(GroupedTablesTest, AnEntryIsABlockOfEachGroupThatHasNotPassedIt) {
  BlockTable table;
  pool_.Pass(table, 30);  // The query at 30 sees from 25 on; from 21 on is kept.
  EXPECT_EQ(pool_.BlocksToGrow(table, 8), 8 + 3);
  ASSERT_TRUE(pool_.Grow(table, 4));
  EXPECT_EQ(table.num_held(), 4);
  EXPECT_EQ(pool_.BlocksToGrow(table, 4), 4 + 3);
  ASSERT_TRUE(pool_.Grow(table, 4));
  EXPECT_EQ(table.size(), 8);
  EXPECT_EQ(table.num_held(), 8 + 3);
  EXPECT_EQ(table.num_passed(0), 0);
  EXPECT_EQ(table.num_passed(1), 5);
  const std::vector<BlockId> flat = table.Flat(8);
  ASSERT_EQ(flat.size(), 16u);
  for (int32_t i = 0; i < 16; ++i) EXPECT_EQ(flat[i] >= 0, i < 8 || i >= 13) << i;
  EXPECT_EQ(pool_.Refs(table).size(), 16u);
  EXPECT_EQ(pool_.CountUnowned({&table}), 0);
}

TEST_F(GroupedTablesTest, NothingIsTakenUnlessAllRowsCanGrow) {
  BlockTable other;
  ASSERT_TRUE(pool_.Grow(other, 15));
  BlockTable table;
  EXPECT_FALSE(pool_.Grow(table, 2));
  EXPECT_EQ(pool_.num_available(), 2);
  EXPECT_TRUE(pool_.Grow(table, 1));
}

TEST_F(GroupedTablesTest, WhatAWindowHasPassedGoesBackFromItsRowAlone) {
  BlockTable table = Computed(30);
  pool_.Pass(table, 30);
  EXPECT_EQ(table.num_held(), 8 + 3);
  EXPECT_EQ(pool_.counts().cached, 5);
  table.Release();
  EXPECT_EQ(pool_.counts().cached, 14);
}

TEST_F(GroupedTablesTest, OfReceivedBlocksThoseThatLackTokensAreNotFound) {
  Received(30).Release();  // From 21 on: entry 5 lacks token 20.
  EXPECT_EQ(pool_.counts().cached, 7 + 1);
  // To compute from 28 on, tokens from 23 on are seen: entry 5 among them.
  EXPECT_EQ(Match(30, MatchFor::kCompute).size(), 0);
}

TEST_F(GroupedTablesTest, OneWhoReceivesNeedsOfAPrefixOnlyWhatTheHandoffDoesNotBring) {
  Received(30).Release();
  // A handoff of 40 tokens brings those from 31 on: of 28 that are found nothing is seen by then.
  const BlockTable far = Match(40, MatchFor::kReceive);
  EXPECT_EQ(far.num_sealed(), 7);
  EXPECT_EQ(far.num_passed(1), 7);
  // One of 34 brings those from 25 on: entry 6 is needed, and whole.
  const BlockTable near = Match(34, MatchFor::kReceive);
  EXPECT_EQ(near.num_sealed(), 7);
  EXPECT_EQ(near.num_passed(1), 6);
  // One of 31 brings those from 22 on: entry 5 is needed of all prefixes that hold it.
  EXPECT_EQ(Match(31, MatchFor::kReceive).num_sealed(), 5);
}

TEST_F(GroupedTablesTest, OneWhoSendsNeedsWhatTheHandoffReadsToo) {
  Computed(30).Release();
  // The query at 28 sees from 23 on, in entry 5; a handoff of 30 tokens reads from 21 on, one of 28
  // from 19 on.
  EXPECT_EQ(Match(30, MatchFor::kCompute).num_passed(1), 5);
  EXPECT_EQ(Match(30, MatchFor::kSend).num_passed(1), 5);
  EXPECT_EQ(pool_.Match("t", Tokens(28), 28, MatchFor::kSend).num_passed(1), 4);
}

TEST_F(GroupedTablesTest, TheLongestPrefixThatServesIsTaken) {
  Computed(20).Release();
  BlockTable longer = Received(30);
  longer.Release();
  // Of the windowed row entries 0 to 4 and 6 are here: with 28 tokens entry 5 is missing, with 24
  // as well, and 20 serve.
  EXPECT_EQ(Match(30, MatchFor::kCompute).num_sealed(), 5);
}

TEST_F(GroupedTablesTest, ATableOnTheHostBeginsWhereThatOnTheDeviceDoes) {
  const BlockTable received = Received(30);
  BlockAllocator host(16, 4, 0, pool_.windows());
  BlockTable there;
  host.PassAs(there, received);
  ASSERT_TRUE(host.Grow(there, 8));
  EXPECT_EQ(there.num_held(), received.num_held());
  // And back: what lacks tokens stays private.
  BlockTable again;
  pool_.PassAs(again, there);
  ASSERT_TRUE(pool_.Grow(again, 8));
  pool_.Seal(again, "u", Tokens(30));
  again.Release();
  EXPECT_EQ(pool_.Match("u", Tokens(30), 29).size(), 0);
  EXPECT_EQ(pool_.counts().cached, 7 + 1);
}

TEST_F(GroupedTablesTest, SeveralGroupsBeginWithOneThatSeesAll) {
  EXPECT_DEATH(BlockAllocator(8, 4, 1, {{.tokens = 6}, {.tokens = 3}}), "check failed");
}

}  // namespace
}  // namespace baton
