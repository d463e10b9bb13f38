#include "router/generation/tenant_quotas.h"

#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/error.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TenantQuotasTest : public testing::Test {
 protected:
  static constexpr QuotaTime kStart = {.steady = Time(std::chrono::hours(5)), .unix_s = 0};
  // Milliseconds after the start.
  static QuotaTime At(int64_t ms) {
    return {.steady = kStart.steady + milliseconds(ms), .unix_s = ms / 1000};
  }
};

TEST_F(TenantQuotasTest, RequestsOverTimeAreExactForEachTenant) {
  std::map<std::string, TenantLimits> limits;
  for (int t = 1; t <= 10; ++t) {
    limits[std::to_string(t)] = {.requests_per_s = 0.5 * t, .burst = 2.0 * t};
  }
  TenantQuotas quotas(limits, {});
  for (int t = 1; t <= 10; ++t) {
    const std::string tenant = std::to_string(t);
    int taken = 0;
    for (int64_t ms = 0; ms <= 60'000; ms += 20) {  // 50 a second for a minute.
      if (!quotas.Acquire(tenant, 1, At(ms)).ok()) continue;
      ++taken;
      quotas.Release({.tenant = tenant, .acquired = At(ms).steady}, 0, At(ms));
    }
    EXPECT_NEAR(taken, 2 * t + 30 * t, 1) << t;
  }
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(quotas.Acquire("other", 1 << 20, kStart).ok());
}

TEST_F(TenantQuotasTest, ARefusalSaysWhenTryingAgainHelps) {
  TenantQuotas quotas({{"a", {.requests_per_s = 0.1, .burst = 1}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 1, kStart).ok());
  const absl::Status refused = quotas.Acquire("a", 1, At(2500)).status();
  EXPECT_TRUE(IsQuotaExceeded(refused));
  EXPECT_EQ(RetryAfter(refused), 8);
  EXPECT_FALSE(quotas.Acquire("a", 1, At(9900)).ok());
  EXPECT_TRUE(quotas.Acquire("a", 1, At(10'001)).ok()) << "refusals cost nothing";
}

TEST_F(TenantQuotasTest, TokensThatAnAnswerLeavesComeBack) {
  TenantQuotas quotas({{"a", {.tokens_per_min = 600}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 500, kStart).ok());
  const absl::Status refused = quotas.Acquire("a", 200, kStart).status();
  EXPECT_TRUE(IsQuotaExceeded(refused));
  EXPECT_EQ(RetryAfter(refused), 10);  // 100 tokens at 10 a second.
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("100 are left"));
  quotas.Release({.tenant = "a", .acquired = kStart.steady}, 450, kStart);
  EXPECT_TRUE(quotas.Acquire("a", 550, kStart).ok());
  EXPECT_FALSE(quotas.Acquire("a", 1, kStart).ok());
  EXPECT_TRUE(quotas.Acquire("a", 10, At(1001)).ok());
  const absl::Status never = quotas.Acquire("a", 601, At(1'000'000)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(never));
  EXPECT_EQ(ErrorParam(never), "max_tokens");
}

TEST_F(TenantQuotasTest, WhatComesBackLateNeverMakesMoreThanTheLimit) {
  TenantQuotas quotas({{"a", {.tokens_per_min = 600}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 600, kStart).ok());
  quotas.Release({.tenant = "a", .acquired = kStart.steady}, 600, At(60'000));
  EXPECT_TRUE(quotas.Acquire("a", 600, At(60'000)).ok());
  EXPECT_FALSE(quotas.Acquire("a", 600, At(60'000)).ok());
}

TEST_F(TenantQuotasTest, WhatTimeHasGivenBackDoesNotComeBackAgainFromOthers) {
  TenantQuotas quotas({{"a", {.tokens_per_min = 600}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 600, kStart).ok());
  ASSERT_TRUE(quotas.Acquire("a", 600, At(120'000)).ok());  // Full for a minute by then.
  quotas.Release({.tenant = "a", .acquired = kStart.steady}, 590, At(120'000));
  EXPECT_FALSE(quotas.Acquire("a", 1, At(120'000)).ok());
  // Down to 100 of the second one's 600: so much of its unused 400 is still out.
  ASSERT_TRUE(quotas.Acquire("a", 500, At(170'000)).ok());
  quotas.Release({.tenant = "a", .acquired = At(120'000).steady}, 400, At(170'000));
  EXPECT_TRUE(quotas.Acquire("a", 100, At(170'000)).ok());
  EXPECT_FALSE(quotas.Acquire("a", 1, At(170'000)).ok());
}

// Two threads may ask the clock in one order and take in the other.
TEST_F(TenantQuotasTest, WhatIsTakenByAnOlderClockComesBackToo) {
  TenantQuotas quotas({{"a", {.tokens_per_min = 600}}}, {});
  const auto younger = quotas.Acquire("a", 100, At(1000));
  const auto older = quotas.Acquire("a", 500, At(999));
  ASSERT_TRUE(younger.ok() && older.ok());
  quotas.Release(*older, 500, At(1000));
  EXPECT_TRUE(quotas.Acquire("a", 500, At(1000)).ok());
  EXPECT_FALSE(quotas.Acquire("a", 1, At(1000)).ok());
}

// Whatever requests take, leave and how long they run: what they have used that began within any
// time is at most a full bucket and what time brings.
TEST_F(TenantQuotasTest, NoOrderOfEndsLetsATenantUseMoreThanItsLimit) {
  constexpr int64_t kPerMin = 6000;  // One in 10 ms.
  struct Request {
    int64_t from_ms, to_ms, asked, used;
    bool ended = false;
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random.Below(static_cast<uint64_t>(n)));
    };
    TenantQuotas quotas({{"a", {.tokens_per_min = kPerMin}}}, {});
    std::vector<Request> requests;
    for (int64_t ms = 0; ms < 300'000; ms += 1 + below(2000)) {
      for (Request& one : requests) {
        if (one.ended || one.to_ms > ms) continue;
        one.ended = true;
        quotas.Release({.tenant = "a", .acquired = At(one.from_ms).steady}, one.asked - one.used,
                       At(ms));
      }
      const int64_t asked = 1 + below(kPerMin);
      if (!quotas.Acquire("a", asked, At(ms)).ok()) continue;
      requests.push_back({.from_ms = ms,
                          .to_ms = ms + below(90'000),
                          .asked = asked,
                          .used = below(asked + 1)});
    }
    for (size_t first = 0; first < requests.size(); ++first) {
      int64_t used = 0;
      for (size_t i = first; i < requests.size(); ++i) {
        used += requests[i].ended ? requests[i].used : requests[i].asked;
        const int64_t span_ms = requests[i].from_ms - requests[first].from_ms;
        ASSERT_LE(used, kPerMin + span_ms / 10 + 1) << "seed " << seed << " from " << first;
      }
    }
  }
}

TEST_F(TenantQuotasTest, RequestsAtATimeCountUntilTheirEnd) {
  TenantQuotas quotas({{"a", {.concurrency = 2}}}, {.concurrency = 1});
  EXPECT_TRUE(quotas.Acquire("a", 1, kStart).ok());
  EXPECT_TRUE(quotas.Acquire("a", 1, kStart).ok());
  EXPECT_TRUE(IsQuotaExceeded(quotas.Acquire("a", 1, kStart).status()));
  quotas.Release({.tenant = "a", .acquired = kStart.steady}, 0, kStart);
  EXPECT_TRUE(quotas.Acquire("a", 1, kStart).ok());
  EXPECT_TRUE(quotas.Acquire("b", 1, kStart).ok());
  EXPECT_TRUE(quotas.Acquire("c", 1, kStart).ok()) << "each has its own";
  EXPECT_TRUE(IsQuotaExceeded(quotas.Acquire("b", 1, kStart).status()));
}

TEST_F(TenantQuotasTest, ARequestThatIsRefusedBehindItsQuotasCostsNothingOfAny) {
  TenantQuotas quotas({{"a",
                        {.requests_per_s = 0.001,
                         .burst = 3,
                         .tokens_per_min = 300,
                         .tokens_per_day = 300,
                         .concurrency = 2}}},
                      {});
  for (int i = 0; i < 100; ++i) {
    const auto refused = quotas.Acquire("a", 100, At(i));
    ASSERT_TRUE(refused.ok()) << i << refused.status();
    quotas.Undo(*refused, At(i));
  }
  for (int i = 0; i < 3; ++i) {
    const auto served = quotas.Acquire("a", 100, At(100));
    ASSERT_TRUE(served.ok()) << i << served.status();
    quotas.Release(*served, 100, At(100));
  }
  EXPECT_TRUE(IsQuotaExceeded(quotas.Acquire("a", 100, At(100)).status())) << "three were served";
}

// What a full bucket would have had no room for does not come back either.
TEST_F(TenantQuotasTest, ALateRefusalGivesBackNoMoreThanItTook) {
  TenantQuotas quotas({{"a", {.requests_per_s = 1, .burst = 2}}}, {});
  const auto late = quotas.Acquire("a", 1, kStart);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(quotas.Acquire("a", 1, At(10'000)).ok());
  quotas.Undo(*late, At(10'000));
  EXPECT_FALSE(quotas.Acquire("a", 1, At(10'000)).ok());
  // Of one that began without a limit nothing was taken.
  const auto unlimited = quotas.Acquire("b", 1, At(10'000));
  quotas.SetLimits({{"b", {.requests_per_s = 0.001, .burst = 1}}});
  ASSERT_TRUE(quotas.Acquire("b", 1, At(10'000)).ok());
  quotas.Undo(*unlimited, At(10'000));
  EXPECT_FALSE(quotas.Acquire("b", 1, At(10'000)).ok());
}

// Whichever are refused, and how late: those that were served are within their rate over any time,
// and refusals leave nothing behind.
TEST_F(TenantQuotasTest, NoOrderOfRefusalsLetsATenantBeServedMoreThanItsRate) {
  constexpr double kPerSecond = 5;
  constexpr double kBurst = 7;
  struct Request {
    int64_t from_ms, to_ms;
    Reservation reservation;
    bool is_refused;
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    TenantQuotas quotas({{"a", {.requests_per_s = kPerSecond, .burst = kBurst}}}, {});
    std::vector<Request> running;
    std::vector<int64_t> served;
    const auto end = [&](int64_t ms) {
      std::erase_if(running, [&](const Request& one) {
        if (one.to_ms > ms) return false;
        one.is_refused ? quotas.Undo(one.reservation, At(ms))
                       : quotas.Release(one.reservation, 0, At(ms));
        return true;
      });
    };
    for (int64_t ms = 0; ms < 60'000; ms += 1 + static_cast<int64_t>(random.Below(150))) {
      end(ms);
      const auto reservation = quotas.Acquire("a", 1, At(ms));
      if (!reservation.ok()) continue;
      running.push_back({.from_ms = ms,
                         .to_ms = ms + static_cast<int64_t>(random.Below(3000)),
                         .reservation = *reservation,
                         .is_refused = random.Below(2) == 0});
      if (!running.back().is_refused) served.push_back(ms);
    }
    for (size_t first = 0; first < served.size(); ++first) {
      for (size_t last = first; last < served.size(); ++last) {
        const double span_s = static_cast<double>(served[last] - served[first]) / 1000;
        ASSERT_LE(static_cast<double>(last - first + 1), kBurst + kPerSecond * span_s + 1e-6)
            << "seed " << seed << " from " << served[first] << " ms";
      }
    }
    end(100'000);
    for (int i = 0; i < kBurst; ++i) ASSERT_TRUE(quotas.Acquire("a", 1, At(100'000)).ok()) << i;
    EXPECT_FALSE(quotas.Acquire("a", 1, At(100'000)).ok());
  }
}

TEST_F(TenantQuotasTest, WhetherThereIsRoomForAnythingIsToldAndCostsNothing) {
  TenantQuotas quotas({{"rate", {.requests_per_s = 0.5, .burst = 1}},
                       {"tokens", {.tokens_per_min = 600}},
                       {"one", {.concurrency = 1}}},
                      {});
  for (const char* tenant : {"rate", "tokens", "one", "none"}) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(quotas.Check(tenant, kStart).ok()) << tenant;
    ASSERT_TRUE(quotas.Acquire(tenant, 600, kStart).ok());
  }
  EXPECT_EQ(RetryAfter(quotas.Check("rate", kStart)), 2);
  EXPECT_TRUE(IsQuotaExceeded(quotas.Check("tokens", At(99))));
  EXPECT_TRUE(quotas.Check("tokens", At(101)).ok()) << "for one token there is room";
  EXPECT_TRUE(IsQuotaExceeded(quotas.Check("one", kStart)));
  quotas.Release({.tenant = "one"}, 0, kStart);
  EXPECT_TRUE(quotas.Check("one", kStart).ok());
  EXPECT_TRUE(quotas.Check("none", kStart).ok());
}

TEST_F(TenantQuotasTest, AClockThatStepsBackGivesNothing) {
  TenantQuotas quotas({{"a", {.requests_per_s = 1, .burst = 1}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 1, At(5000)).ok());
  EXPECT_FALSE(quotas.Acquire("a", 1, kStart).ok());
  EXPECT_FALSE(quotas.Acquire("a", 1, At(5900)).ok());
  EXPECT_TRUE(quotas.Acquire("a", 1, At(6001)).ok());
}

// Noon of a day in 2026, which is so many days off.
constexpr int64_t kNoon = 20'600 * int64_t{86'400} + 43'200;
QuotaTime Day(int64_t days, int64_t seconds = 0) {
  return {.steady = Time(std::chrono::seconds(seconds)),
          .unix_s = kNoon + days * 86'400 + seconds};
}

TEST_F(TenantQuotasTest, ADaysTokensEndAndComeBackAtMidnight) {
  TenantQuotas quotas({{"a", {.tokens_per_day = 1000}}}, {});
  for (int i = 0; i < 10; ++i) {
    const auto held = quotas.Acquire("a", 100, Day(0));
    ASSERT_TRUE(held.ok()) << i;
    quotas.Release(*held, 0, Day(0));
  }
  const absl::Status refused = quotas.Acquire("a", 1, Day(0, 600)).status();
  EXPECT_TRUE(IsQuotaExceeded(refused));
  EXPECT_EQ(ErrorCode(refused), "insufficient_quota");
  EXPECT_EQ(RetryAfter(refused), 43'200 - 600);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("00:00 UTC, in 42600 s"));
  EXPECT_FALSE(quotas.Acquire("a", 1, Day(0, 43'199)).ok());
  EXPECT_TRUE(quotas.Acquire("a", 1000, Day(0, 43'200)).ok());
  EXPECT_TRUE(quotas.Acquire("other", 1 << 20, Day(0)).ok());
  const absl::Status never = quotas.Acquire("a", 1001, Day(5)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(never));
  EXPECT_EQ(ErrorParam(never), "max_tokens");
}

TEST_F(TenantQuotasTest, WhatARunningRequestHoldsOfTheDayIsWaitedForAndComesBack) {
  TenantQuotas quotas({{"a", {.tokens_per_day = 1000}}}, {});
  const auto held = quotas.Acquire("a", 900, Day(0));
  const absl::Status refused = quotas.Acquire("a", 200, Day(0)).status();
  EXPECT_EQ(ErrorCode(refused), "insufficient_quota");
  EXPECT_EQ(RetryAfter(refused), 1) << "it may end at any time";
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("of your 1000 a day 100 are left, and running requests hold 900"));
  quotas.Release(*held, 850, Day(0));
  EXPECT_TRUE(quotas.Acquire("a", 950, Day(0)).ok());
  EXPECT_FALSE(quotas.Acquire("a", 1, Day(0)).ok());
}

TEST_F(TenantQuotasTest, WhatYesterdayLeavesIsNotTodays) {
  TenantQuotas quotas({{"a", {.tokens_per_day = 1000}}}, {});
  const auto yesterday = quotas.Acquire("a", 1000, Day(0));
  ASSERT_TRUE(quotas.Acquire("a", 1000, Day(1)).ok());
  quotas.Release(*yesterday, 1000, Day(1));
  EXPECT_FALSE(quotas.Acquire("a", 1, Day(1)).ok());
}

TEST_F(TenantQuotasTest, AWallClockThatStepsBackOverMidnightGivesNothing) {
  TenantQuotas quotas({{"a", {.tokens_per_day = 1000}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 1000, Day(1)).ok());
  const absl::Status refused = quotas.Acquire("a", 1, Day(0)).status();
  EXPECT_TRUE(IsQuotaExceeded(refused));
  EXPECT_FALSE(quotas.Acquire("a", 1, Day(1)).ok());
  EXPECT_TRUE(quotas.Acquire("a", 1000, Day(2)).ok());
  // One that was a year ahead and comes back does not take the tokens of a year.
  ASSERT_TRUE(quotas.Acquire("a", 1000, Day(367)).ok());
  EXPECT_TRUE(quotas.Acquire("a", 1000, Day(2)).ok());
}

TEST_F(TenantQuotasTest, NewLimitsFindWhatWasCounted) {
  const TenantLimits limits{.requests_per_s = 1, .burst = 2, .tokens_per_day = 1000};
  TenantQuotas quotas({{"a", limits}}, {});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(quotas.Acquire("a", 400, Day(0)).ok());
  quotas.SetLimits({{"a", limits}, {"b", limits}});
  EXPECT_FALSE(quotas.Acquire("a", 1, Day(0)).ok()) << "the bucket is still empty";
  EXPECT_FALSE(quotas.Acquire("a", 201, Day(0, 1)).ok()) << "the day's tokens are still taken";
  EXPECT_TRUE(quotas.Acquire("a", 200, Day(0, 1)).ok());
  EXPECT_EQ(quotas.LimitsOf("b"), limits);
  // What had no limit before has taken of the day, and nothing from the buckets.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(quotas.Acquire("c", 5, Day(0)).ok());
  quotas.SetLimits({{"a", limits}, {"c", limits}});
  EXPECT_TRUE(quotas.Acquire("c", 500, Day(0)).ok());
  EXPECT_FALSE(quotas.Acquire("c", 1, Day(0, 5)).ok());
}

TEST_F(TenantQuotasTest, AfterALimitWasLoweredABucketIsFullAsSoonAsANewOne) {
  TenantQuotas quotas({{"a", {.tokens_per_min = 1'000'000}}}, {});
  ASSERT_TRUE(quotas.Acquire("a", 1'000'000, kStart).ok());
  quotas.SetLimits({{"a", {.tokens_per_min = 60}}});
  EXPECT_FALSE(quotas.Acquire("a", 60, At(59'000)).ok());
  EXPECT_TRUE(quotas.Acquire("a", 60, At(60'001)).ok());
}

}  // namespace
}  // namespace baton
