#include "common/kv_cache/prefix_index.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixIndexTest, KeysDependOnTenantSecretParentAndTokens) {
  const auto key_of = [](uint64_t secret, std::string_view tenant, const Tokens& first,
                         const Tokens& second) {
    PrefixIndex index(secret);
    const PrefixNode parent = index.Insert(index.Root(tenant), tenant, first, 0, 0).node;
    return index.Insert(parent, tenant, second, 0, 1).node.key;
  };
  const PrefixKey key = key_of(1, "a", {1, 2}, {3, 4});
  EXPECT_EQ(key, key_of(1, "a", {1, 2}, {3, 4}));
  EXPECT_FALSE(key == key_of(2, "a", {1, 2}, {3, 4}));
  EXPECT_FALSE(key == key_of(1, "b", {1, 2}, {3, 4}));
  EXPECT_FALSE(key == key_of(1, "a", {2, 1}, {3, 4}));
  EXPECT_FALSE(key == key_of(1, "a", {1, 2}, {4, 3}));
}

TEST(PrefixIndexTest, ParentsThatDifferInOneHalfGiveDifferentKeys) {
  PrefixIndex index(1);
  const PrefixKey key = index.Insert({{5, 7}, 1}, "t", Tokens{1}, 0, 0).node.key;
  EXPECT_FALSE(key == index.Insert({{6, 7}, 1}, "t", Tokens{1}, 0, 1).node.key);
  EXPECT_FALSE(key == index.Insert({{5, 8}, 1}, "t", Tokens{1}, 0, 2).node.key);
}

TEST(PrefixIndexTest, FindsWhatWasInsertedBelowItsParent) {
  PrefixIndex index(1);
  const PrefixNode root = index.Root("t");
  const auto first = index.Insert(root, "t", Tokens{1, 2}, 0, 6);
  const auto second = index.Insert(first.node, "t", Tokens{3, 4}, 0, 7);
  EXPECT_TRUE(first.inserted && second.inserted);
  const auto hit = index.Find(root, "t", Tokens{1, 2});
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->blocks[0], 6);
  EXPECT_EQ(index.Find(hit->node, "t", Tokens{3, 4})->blocks[0], 7);
  EXPECT_FALSE(index.Find(root, "t", Tokens{3, 4}).has_value());
}

// The same key, as if the hash had collided: tenant, parent and tokens still decide.
TEST(PrefixIndexTest, ACollidingKeyIsNoHitForAnotherTenantOrParent) {
  PrefixIndex index(1);
  const PrefixNode parent{{3, 4}, 10};
  ASSERT_TRUE(index.Insert(parent, "t", Tokens{1, 2}, 0, 6).inserted);
  EXPECT_TRUE(index.Find(parent, "t", Tokens{1, 2}).has_value());
  EXPECT_FALSE(index.Find(parent, "u", Tokens{1, 2}).has_value());
  EXPECT_FALSE(index.Find(PrefixNode{{3, 4}, 11}, "t", Tokens{1, 2}).has_value());
}

// XXH3 of four bytes keeps only input ^ (constant + seed), and the parent's key is in the seed: so
// one parent's key makes token 2 collide with token 1 below another one.
PrefixKey CollidingParent(uint64_t secret, const PrefixKey& of) {
  const auto word = [](int at) {
    uint64_t value;
    std::memcpy(&value, XXH3_kSecret + at, sizeof(value));
    return value;
  };
  const auto swapped = [](uint64_t v) { return uint64_t{__builtin_bswap32(uint32_t(v))} << 32; };
  const auto input = [](uint64_t token) { return token | token << 32; };
  const uint64_t constant = word(16) ^ word(24);
  const uint64_t seed = secret ^ of.lo;
  const uint64_t hashed = input(1) ^ (constant + (seed ^ swapped(seed)));
  const uint64_t other_seed = (hashed ^ input(2)) - constant;
  return {of.hi, secret ^ other_seed ^ swapped(other_seed)};
}

TEST(PrefixIndexTest, ACollidingKeyIsNoHitForOtherTokens) {
  constexpr uint64_t kSecret = 99;
  const PrefixNode one{{3, 4}, 10};
  const PrefixNode other{CollidingParent(kSecret, one.key), 10};
  PrefixIndex index(kSecret);
  const PrefixKey key = index.Insert(one, "t", Tokens{1}, 0, 6).node.key;
  ASSERT_EQ(PrefixIndex(kSecret).Insert(other, "t", Tokens{2}, 0, 7).node.key, key);
  EXPECT_TRUE(index.Find(one, "t", Tokens{1}).has_value());
  EXPECT_FALSE(index.Find(other, "t", Tokens{2}).has_value());
  EXPECT_FALSE(index.Insert(other, "t", Tokens{2}, 0, 7).inserted);
  EXPECT_EQ(index.Find(one, "t", Tokens{1})->blocks[0], 6);
}

TEST(PrefixIndexTest, NothingIsFoundBelowAPrefixWhoseKeyAnotherOneHas) {
  PrefixIndex index(1);
  const PrefixNode one{{3, 4}, 10}, other{{3, 4}, 11};
  const PrefixNode below_one = index.Insert(one, "t", Tokens{1}, 0, 6).node;
  const auto collided = index.Insert(other, "t", Tokens{1}, 0, 7);
  EXPECT_FALSE(collided.inserted);
  EXPECT_NE(collided.node.serial, below_one.serial);
  ASSERT_TRUE(index.Insert(collided.node, "t", Tokens{2}, 0, 8).inserted);
  EXPECT_FALSE(index.Find(below_one, "t", Tokens{2}).has_value());
}

TEST(PrefixIndexTest, TheFirstBlockOfAPrefixStaysAndTheSecondGoesOnFromIt) {
  PrefixIndex index(1);
  const PrefixNode root = index.Root("t");
  const auto first = index.Insert(root, "t", Tokens{10}, 0, 6);
  const auto twin = index.Insert(root, "t", Tokens{10}, 0, 7);
  EXPECT_FALSE(twin.inserted);
  EXPECT_EQ(twin.node.serial, first.node.serial);
  EXPECT_EQ(index.Find(root, "t", Tokens{10})->blocks[0], 6);
  EXPECT_EQ(index.num_blocks(), 1u);
  index.Erase(first.node.key, 6);
  EXPECT_FALSE(index.Find(root, "t", Tokens{10}).has_value());
  EXPECT_EQ(index.num_blocks(), 0u);
}

TEST(PrefixIndexTest, EachGroupHasABlockOfAPrefixAndThePrefixGoesWithTheLast) {
  PrefixIndex index(1);
  const PrefixNode root = index.Root("t");
  const auto wide = index.Insert(root, "t", Tokens{1}, 0, 6);
  const auto narrow = index.Insert(root, "t", Tokens{1}, 2, 7);
  EXPECT_TRUE(wide.inserted && narrow.inserted);
  EXPECT_EQ(narrow.node.serial, wide.node.serial);
  EXPECT_FALSE(index.Insert(root, "t", Tokens{1}, 2, 8).inserted);
  const auto blocks_of = [&] {
    const auto hit = index.Find(root, "t", Tokens{1});
    return hit ? std::vector<BlockId>(hit->blocks.begin(), hit->blocks.end())
               : std::vector<BlockId>{};
  };
  EXPECT_EQ(blocks_of(), (std::vector<BlockId>{6, -1, 7}));
  EXPECT_EQ(index.num_blocks(), 2u);
  index.Erase(wide.node.key, 6);
  EXPECT_EQ(blocks_of(), (std::vector<BlockId>{-1, -1, 7}));
  // What is below it is still below it.
  EXPECT_EQ(index.Insert(root, "t", Tokens{1}, 0, 9).node.serial, wide.node.serial);
  index.Erase(wide.node.key, 9);
  index.Erase(wide.node.key, 7);
  EXPECT_EQ(blocks_of(), std::vector<BlockId>{});
  EXPECT_NE(index.Insert(root, "t", Tokens{1}, 0, 6).node.serial, wide.node.serial);
}

TEST(PrefixIndexTest, WhatIsBelowAnErasedPrefixIsNotFoundBelowItsSuccessor) {
  PrefixIndex index(1);
  const PrefixNode root = index.Root("t");
  const PrefixNode old = index.Insert(root, "t", Tokens{1}, 0, 6).node;
  index.Insert(old, "t", Tokens{2}, 0, 7);
  index.Erase(old.key, 6);
  const PrefixNode successor = index.Insert(root, "t", Tokens{1}, 0, 8).node;
  EXPECT_FALSE(index.Find(successor, "t", Tokens{2}).has_value());
}

}  // namespace
}  // namespace baton
