#include "router/generation/seed_source.h"

#include <gtest/gtest.h>

#include <set>

namespace baton {
namespace {

TEST(SeedSourceTest, DoesNotRepeat) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 100; ++i) seeds.insert(RandomSeed());
  EXPECT_EQ(seeds.size(), 100u);
}

}  // namespace
}  // namespace baton
