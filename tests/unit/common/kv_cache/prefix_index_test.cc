#include "common/kv_cache/prefix_index.h"

#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixIndexTest, KeysDependOnTenantSecretParentAndTokens) {
  const PrefixIndex index(1);
  const PrefixKey root = index.Root("a");
  EXPECT_EQ(root, index.Root("a"));
  EXPECT_FALSE(root == index.Root("b"));
  EXPECT_FALSE(root == PrefixIndex(2).Root("a"));
  const PrefixKey key = index.Extend(root, Tokens{1, 2});
  EXPECT_EQ(key, index.Extend(root, Tokens{1, 2}));
  EXPECT_FALSE(key == index.Extend(root, Tokens{2, 1}));
  EXPECT_FALSE(key == index.Extend(index.Root("b"), Tokens{1, 2}));
  EXPECT_FALSE(key == PrefixIndex(2).Extend(root, Tokens{1, 2}));
}

TEST(PrefixIndexTest, ParentsThatDifferInOneHalfGiveDifferentKeys) {
  const PrefixIndex index(1);
  const PrefixKey key = index.Extend({5, 7}, Tokens{1});
  EXPECT_FALSE(key == index.Extend({6, 7}, Tokens{1}));
  EXPECT_FALSE(key == index.Extend({5, 8}, Tokens{1}));
}

TEST(PrefixIndexTest, ACollidingKeyIsNoHitForOtherTokensOrParents) {
  PrefixIndex index(1);
  const PrefixKey key{1, 2}, parent{3, 4};
  ASSERT_TRUE(index.Insert(key, parent, Tokens{10, 11}, 6));
  EXPECT_EQ(index.Find(key, parent, Tokens{10, 11}), 6);
  EXPECT_EQ(index.Find(key, parent, Tokens{10, 12}), -1);
  EXPECT_EQ(index.Find(key, parent, Tokens{10}), -1);
  EXPECT_EQ(index.Find(key, PrefixKey{3, 5}, Tokens{10, 11}), -1);
  EXPECT_EQ(index.Find(PrefixKey{1, 3}, parent, Tokens{10, 11}), -1);
}

TEST(PrefixIndexTest, TheFirstBlockOfAKeyStays) {
  PrefixIndex index(1);
  const PrefixKey key{1, 2}, parent{3, 4};
  EXPECT_TRUE(index.Insert(key, parent, Tokens{10}, 6));
  EXPECT_FALSE(index.Insert(key, parent, Tokens{10}, 7));
  EXPECT_EQ(index.Find(key, parent, Tokens{10}), 6);
  EXPECT_EQ(index.size(), 1u);
  index.Erase(key);
  EXPECT_EQ(index.Find(key, parent, Tokens{10}), -1);
  EXPECT_EQ(index.size(), 0u);
}

}  // namespace
}  // namespace baton
