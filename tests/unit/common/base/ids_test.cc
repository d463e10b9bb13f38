#include "common/base/ids.h"

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(SequenceIdTest, IsPrintedAsRouterAndCounter) {
  EXPECT_EQ(ToString(SequenceId{0xAB, 17}), "00000000000000ab-17");
  EXPECT_EQ(ToString(SequenceId{~0ull, ~0ull}), "ffffffffffffffff-18446744073709551615");
}

TEST(SequenceIdTest, OrdersByRouterThenCounter) {
  EXPECT_LT((SequenceId{1, 9}), (SequenceId{2, 1}));
  EXPECT_LT((SequenceId{1, 8}), (SequenceId{1, 9}));
}

TEST(SequenceIdTest, SameCounterOfAnotherRouterIsAnotherKey) {
  absl::flat_hash_set<SequenceId> ids = {{1, 5}, {2, 5}, {1, 5}};
  EXPECT_EQ(ids.size(), 2u);
}

TEST(TicketIdTest, IsPrintedAs32HexDigits) {
  EXPECT_EQ(ToString(TicketId{0x1, 0xF0}), "000000000000000100000000000000f0");
}

TEST(TicketIdTest, OnlyAllZeroIsNoTicket) {
  EXPECT_TRUE(TicketId{}.empty());
  EXPECT_FALSE((TicketId{0, 1}).empty());
  EXPECT_FALSE((TicketId{1, 0}).empty());
}

}  // namespace
}  // namespace baton
