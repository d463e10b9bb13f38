#include "common/rpc/ended_keys.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(EndedKeysTest, TheLastOnesAreKeptAndNoMore) {
  EndedKeys keys;
  constexpr uint32_t kKept = kKeptEndedKeys;
  for (uint32_t key = 0; key < kKept; ++key) keys.Add(key);
  for (int times = 0; times < 3; ++times) keys.Add(0);  // Named again it takes no other's place.
  EXPECT_TRUE(keys.Contains(0) && keys.Contains(1) && keys.Contains(kKept - 1));
  EXPECT_FALSE(keys.Contains(kKept));
  keys.Add(kKept);
  EXPECT_FALSE(keys.Contains(0));
  EXPECT_TRUE(keys.Contains(1) && keys.Contains(kKept));
}

}  // namespace
}  // namespace baton
