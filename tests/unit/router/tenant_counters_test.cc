#include "router/tenant_counters.h"

#include <cstdint>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(TenantCountersTest, IsChargedByWeight) {
  TenantCounters counters;
  TenantAccount& light = counters.Join("light", 1);
  TenantAccount& heavy = counters.Join("heavy", 4);
  counters.Charge(light, 100);
  counters.Charge(heavy, 400);
  EXPECT_EQ(light.counter, heavy.counter);
  counters.Charge(heavy, -40);
  EXPECT_EQ(10 * (light.counter - heavy.counter), light.counter);
}

TEST(TenantCountersTest, WeightsBeyondTheirBoundsCountAsTheBounds) {
  TenantCounters counters;
  EXPECT_EQ(counters.Join("a", 0).weight, 1);
  EXPECT_EQ(counters.Join("b", std::numeric_limits<int32_t>::min()).weight, 1);
  EXPECT_EQ(counters.Join("c", std::numeric_limits<int32_t>::max()).weight, 1000);
}

TEST(TenantCountersTest, WhoReturnsIsLiftedToTheLeastOfThoseThatAreThere) {
  TenantCounters counters;
  TenantAccount& first = counters.Join("first", 1);
  TenantAccount& second = counters.Join("second", 1);
  counters.Charge(first, 500);
  counters.Charge(second, 300);
  EXPECT_EQ(counters.Join("newcomer", 1).counter, second.counter);
}

TEST(TenantCountersTest, WhoOwesMoreThanTheOthersStillDoesWhenItReturns) {
  TenantCounters counters;
  TenantAccount& stays = counters.Join("stays", 1);
  TenantAccount* owes = &counters.Join("owes", 1);
  counters.Charge(stays, 100);
  counters.Charge(*owes, 900);
  const VirtualCounter before = owes->counter;
  counters.Part(*owes);
  owes = &counters.Join("owes", 1);
  EXPECT_EQ(owes->counter, before);
  counters.Part(*owes);
  counters.Charge(stays, 900);
  EXPECT_GT(counters.Join("owes", 1).counter, before) << "the others have caught up";
}

TEST(TenantCountersTest, AfterAQuietTimeAllBeginAlike) {
  TenantCounters counters;
  TenantAccount& alone = counters.Join("alone", 1);
  counters.Charge(alone, 1000);
  const VirtualCounter after = alone.counter;
  counters.Part(alone);
  EXPECT_EQ(counters.num_active(), 0u);
  EXPECT_EQ(counters.Join("newcomer", 1).counter, after);
  EXPECT_EQ(counters.Join("alone", 1).counter, after);
}

TEST(TenantCountersTest, IsThereUntilItsLastRequestEnds) {
  TenantCounters counters;
  TenantAccount& account = counters.Join("a", 1);
  EXPECT_EQ(&counters.Join("a", 2), &account);
  EXPECT_EQ(account.weight, 2);
  counters.Part(account);
  EXPECT_EQ(counters.num_active(), 1u);
  counters.Part(account);
  EXPECT_EQ(counters.num_active(), 0u);
}

TEST(TenantCountersTest, CountersGoOnBeyond63Bits) {
  TenantCounters counters;
  TenantAccount& a = counters.Join("a", 1);
  TenantAccount& b = counters.Join("b", 1);
  for (int i = 0; i < 100; ++i) {
    counters.Charge(a, std::numeric_limits<int64_t>::max());
    counters.Charge(b, std::numeric_limits<int64_t>::max());
  }
  counters.Charge(a, 1);
  EXPECT_GT(b.counter, VirtualCounter(std::numeric_limits<int64_t>::max()));
  EXPECT_GT(a.counter, b.counter) << "one token more";
  EXPECT_EQ(counters.Join("c", 1).counter, b.counter);
}

TEST(TenantCountersTest, HundredThousandNamesLeaveABoundedTrace) {
  TenantCounters counters;
  TenantAccount& stays = counters.Join("stays", 1);
  for (int i = 0; i < 100'000; ++i) {
    TenantAccount& owes = counters.Join(std::to_string(i), 1);
    counters.Charge(owes, 1000 + i);
    counters.Part(owes);
  }
  EXPECT_EQ(counters.num_active(), 1u);
  // Those that owe most; the others begin as newcomers do.
  size_t remembered = 0;
  for (int i = 0; i < 100'000; ++i) {
    const bool owes = counters.Join(std::to_string(i), 1).counter > stays.counter;
    remembered += owes ? 1 : 0;
    EXPECT_EQ(owes, i >= 100'000 - static_cast<int>(TenantCounters::kMaxRemembered)) << i;
  }
  EXPECT_EQ(remembered, TenantCounters::kMaxRemembered);
}

}  // namespace
}  // namespace baton
