#include "router/routing/prefix_directory.h"

#include <numeric>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr int32_t kChunk = PrefixDirectory::kChunkTokens;

std::vector<int32_t> Tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(PrefixDirectoryTest, HashesEachFullChunkOfThePromptAndItsTenant) {
  const auto hashes = PrefixDirectory::Hashes("t", Tokens(3 * kChunk + 1));
  EXPECT_EQ(hashes.size(), 3u);
  EXPECT_TRUE(PrefixDirectory::Hashes("t", Tokens(kChunk - 1)).empty());
  EXPECT_EQ(PrefixDirectory::Hashes("t", Tokens(kChunk))[0], hashes[0]);
  EXPECT_NE(PrefixDirectory::Hashes("u", Tokens(kChunk))[0], hashes[0]);
  // A chunk's hash depends on what comes before it.
  EXPECT_NE(PrefixDirectory::Hashes("t", Tokens(kChunk, kChunk))[0], hashes[1]);
}

TEST(PrefixDirectoryTest, MatchesTheLongestKnownPrefixPerWorker) {
  PrefixDirectory directory(100);
  const auto short_one = PrefixDirectory::Hashes("t", Tokens(kChunk));
  const auto long_one = PrefixDirectory::Hashes("t", Tokens(3 * kChunk));
  directory.Add(short_one, 0);
  directory.Add(long_one, 1);
  EXPECT_EQ(directory.MatchedTokens(long_one, 0), kChunk);
  EXPECT_EQ(directory.MatchedTokens(long_one, 1), 3 * kChunk);
  EXPECT_EQ(directory.MatchedTokens(short_one, 1), kChunk);
  EXPECT_EQ(directory.MatchedTokens(long_one, 2), 0);
}

TEST(PrefixDirectoryTest, ARestartedWorkerHoldsNothing) {
  PrefixDirectory directory(100);
  const auto hashes = PrefixDirectory::Hashes("t", Tokens(2 * kChunk));
  directory.Add(hashes, 0);
  directory.Add(hashes, 1);
  directory.Forget(0);
  EXPECT_EQ(directory.MatchedTokens(hashes, 0), 0);
  EXPECT_EQ(directory.MatchedTokens(hashes, 1), 2 * kChunk);
}

TEST(PrefixDirectoryTest, StaysWithinItsBoundAndForgetsTheOldestTailFirst) {
  PrefixDirectory directory(4);
  const auto oldest = PrefixDirectory::Hashes("t", Tokens(3 * kChunk));
  const auto newer = PrefixDirectory::Hashes("u", Tokens(3 * kChunk));
  directory.Add(oldest, 0);
  directory.Add(newer, 0);
  EXPECT_EQ(directory.size(), 4u);
  EXPECT_EQ(directory.MatchedTokens(newer, 0), 3 * kChunk);
  EXPECT_EQ(directory.MatchedTokens(oldest, 0), kChunk);
}

TEST(PrefixDirectoryTest, TheKeyIsOfTheFirstChunksAndTheTenant) {
  EXPECT_EQ(PrefixDirectory::KeyOf(PrefixDirectory::Hashes("t", Tokens(kChunk - 1))), 0u);
  std::vector<int32_t> tokens = Tokens(6 * kChunk);
  const uint64_t key = PrefixDirectory::KeyOf(PrefixDirectory::Hashes("t", tokens));
  EXPECT_EQ(key, PrefixDirectory::Hashes("t", tokens)[3]);
  EXPECT_NE(key, PrefixDirectory::KeyOf(PrefixDirectory::Hashes("u", tokens)));
  tokens[4 * kChunk] += 1;
  EXPECT_EQ(key, PrefixDirectory::KeyOf(PrefixDirectory::Hashes("t", tokens)));
  tokens[4 * kChunk - 1] += 1;
  EXPECT_NE(key, PrefixDirectory::KeyOf(PrefixDirectory::Hashes("t", tokens)));
  EXPECT_EQ(PrefixDirectory::KeyOf(PrefixDirectory::Hashes("t", Tokens(2 * kChunk))),
            PrefixDirectory::Hashes("t", Tokens(2 * kChunk))[1]);
}

TEST(PrefixDirectoryTest, AddingAgainMakesItRecent) {
  PrefixDirectory directory(2);
  const auto a = PrefixDirectory::Hashes("a", Tokens(kChunk));
  const auto b = PrefixDirectory::Hashes("b", Tokens(kChunk));
  const auto c = PrefixDirectory::Hashes("c", Tokens(kChunk));
  directory.Add(a, 0);
  directory.Add(b, 0);
  directory.Add(a, 0);
  directory.Add(c, 0);
  EXPECT_EQ(directory.MatchedTokens(a, 0), kChunk);
  EXPECT_EQ(directory.MatchedTokens(b, 0), 0);
}

}  // namespace
}  // namespace baton
