#include "router/fair_queue.h"

#include <chrono>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

class FairQueueTest : public testing::Test {
 protected:
  uint64_t Add(const TenantAccount& account, int32_t priority = 0, int32_t prompt = 3) {
    SequenceState& sequence = sequences_.Of(account, priority, prompt);
    sequence.arrival = now_;
    queue_.Add(sequence, now_);
    return sequence.id.counter;
  }
  // The order in which they are offered when nobody is served.
  std::vector<uint64_t> Order() {
    std::vector<uint64_t> counters;
    queue_.BeginPass(now_);
    while (const auto next = queue_.Next()) {
      counters.push_back(*next);
      queue_.PassOver(*next);
    }
    return counters;
  }
  // Gives so many their turn, each of which costs its tenant so many tokens.
  std::vector<uint64_t> Serve(int count, int64_t tokens) {
    std::vector<uint64_t> served;
    queue_.BeginPass(now_);
    for (int i = 0; i < count; ++i) {
      const auto next = queue_.Next();
      if (!next) break;
      queue_.Take(*next, now_);
      sequences_.counters.Charge(sequences_.AccountOf(*next), tokens);
      served.push_back(*next);
    }
    return served;
  }

  Time now_{};
  SequenceBuilder sequences_;
  TenantAccount& a_ = sequences_.Tenant("a");
  TenantAccount& b_ = sequences_.Tenant("b");
  FairQueue queue_;
};

// ---- Between tenants ---------------------------------------------------------------------------

TEST_F(FairQueueTest, TheTenantThatWasServedLeastGoesFirstThenArrival) {
  const std::vector<uint64_t> of_a = {Add(a_), Add(a_), Add(a_)};
  const std::vector<uint64_t> of_b = {Add(b_), Add(b_)};
  EXPECT_THAT(Serve(5, 10), ElementsAre(of_a[0], of_b[0], of_a[1], of_b[1], of_a[2]));
}

TEST_F(FairQueueTest, AHeavyTenantHasItsWeight) {
  TenantAccount& heavy = sequences_.Tenant("heavy", 3);
  for (int i = 0; i < 12; ++i) {
    Add(a_);
    Add(heavy);
  }
  int of_heavy = 0;
  for (const uint64_t one : Serve(12, 10)) of_heavy += &sequences_.AccountOf(one) == &heavy;
  EXPECT_EQ(of_heavy, 9);
}

TEST_F(FairQueueTest, WhatATenantIsChargedWhileItWaitsIsSeenAndWhatItGetsBackToo) {
  const uint64_t of_a = Add(a_), of_b = Add(b_);
  sequences_.counters.Charge(a_, 20);
  EXPECT_THAT(Order(), ElementsAre(of_b, of_a));
  sequences_.counters.Charge(b_, 30);
  EXPECT_THAT(Order(), ElementsAre(of_a, of_b));
  sequences_.counters.Charge(b_, -15);
  queue_.Rerank(b_);
  EXPECT_THAT(Order(), ElementsAre(of_b, of_a));
  queue_.BeginPass(now_);
  sequences_.counters.Charge(b_, -5);
  EXPECT_DEATH(queue_.Next(), "account->counter") << "it was not ranked anew";
}

TEST_F(FairQueueTest, ABetterClassGoesBeforeWhoWasServedLess) {
  sequences_.counters.Charge(a_, 1'000'000);
  const uint64_t of_b = Add(b_), urgent = Add(a_, -1), late = Add(b_, 1);
  EXPECT_THAT(Order(), ElementsAre(urgent, of_b, late));
}

// ---- Ageing ------------------------------------------------------------------------------------

TEST_F(FairQueueTest, ATenantGainsAClassForEachTenSecondsWithoutATurn) {
  sequences_.counters.Charge(a_, 1'000'000);
  const uint64_t debtor = Add(a_, 1);
  now_ += milliseconds(9'999);
  const uint64_t fresh = Add(b_);
  EXPECT_THAT(Order(), ElementsAre(fresh, debtor));
  now_ += milliseconds(1);
  EXPECT_THAT(Order(), ElementsAre(fresh, debtor)) << "the same class, and it owes more";
  now_ += seconds(9);
  const uint64_t younger = Add(b_);
  EXPECT_THAT(Order(), ElementsAre(fresh, younger, debtor));
  now_ += milliseconds(999);
  EXPECT_THAT(Serve(1, 1), ElementsAre(fresh));
  now_ += milliseconds(1);
  EXPECT_THAT(Order(), ElementsAre(debtor, younger));
}

TEST_F(FairQueueTest, AFloodGainsOneTurnByAgeAndNotOneForEachRequest) {
  sequences_.counters.Charge(a_, 1'000'000);
  std::vector<uint64_t> flood;
  for (int i = 0; i < 10; ++i) flood.push_back(Add(a_));
  now_ += seconds(25);
  const uint64_t other = Add(b_);
  EXPECT_THAT(Serve(3, 1), ElementsAre(flood[0], other, flood[1]));
}

TEST_F(FairQueueTest, NoPriorityStarvesAnother) {
  const uint64_t humble = Add(b_, std::numeric_limits<int32_t>::max());
  const uint64_t own = Add(a_, 5);
  // One of the best class in every second, served as it comes.
  int seconds_waited = 0;
  for (; queue_.Contains(own) && seconds_waited < 1000; ++seconds_waited) {
    now_ += seconds(1);
    Add(a_, 0);
    Serve(1, 1);
  }
  EXPECT_NEAR(seconds_waited, 50, 2) << "five classes of ten seconds";
  EXPECT_TRUE(queue_.Contains(humble));
}

TEST_F(FairQueueTest, TheExtremesOfPriorityAreOrderedLikeOthers) {
  const int32_t least = std::numeric_limits<int32_t>::min();
  const int32_t most = std::numeric_limits<int32_t>::max();
  const uint64_t last = Add(a_, most), first = Add(a_, least), near = Add(b_, -2147483647);
  const uint64_t middle = Add(b_, 0);
  now_ += seconds(100'000);
  EXPECT_THAT(Serve(4, 1), ElementsAre(first, near, middle, last));
}

TEST_F(FairQueueTest, AnAgedRequestTakesItsTenantsPlaceAndNotAWorseOne) {
  const uint64_t old = Add(a_, 3);
  now_ += seconds(31);
  const uint64_t fresh = Add(a_, 0);
  // Of the tenant's own it is the first by now; the tenant asks as what its best asks for.
  sequences_.counters.Charge(b_, 5);
  const uint64_t other = Add(b_, 1);
  EXPECT_THAT(Order(), ElementsAre(old, fresh, other));
}

// ---- What was under way ------------------------------------------------------------------------

TEST_F(FairQueueTest, WhatWasUnderWayGoesFirstInItsClass) {
  const uint64_t fresh = Add(b_), urgent = Add(b_, -1);
  for (const int32_t priority : {1, 0}) {
    SequenceState& resumes = sequences_.Of(a_, priority);
    resumes.charged = 3;
    queue_.Add(resumes, now_);
  }
  sequences_.counters.Charge(a_, 1'000'000);
  EXPECT_THAT(Serve(9, 1), ElementsAre(urgent, 4, fresh, 3));
  SequenceState& long_since = sequences_.Of(a_, 1);
  long_since.charged = 3;
  queue_.Add(long_since, now_);
  now_ += seconds(20);
  const uint64_t later = Add(b_, -1);
  const uint64_t latest = Add(b_, -2);
  EXPECT_THAT(Serve(9, 1), ElementsAre(latest, long_since.id.counter, later));
}

TEST_F(FairQueueTest, WhatWasUnderWayGainsAClassAfterTenSecondsAndNotBefore) {
  SequenceState& resumes = sequences_.Of(a_, 1);
  resumes.charged = 3;
  resumes.arrival = now_;
  queue_.Add(resumes, now_);
  now_ += milliseconds(9'999);
  const uint64_t fresh = Add(b_);
  EXPECT_THAT(Order(), ElementsAre(fresh, resumes.id.counter));
  now_ += milliseconds(1);
  EXPECT_THAT(Order(), ElementsAre(resumes.id.counter, fresh));
}

// ---- Kinds -------------------------------------------------------------------------------------

TEST_F(FairQueueTest, AKindThatIsClosedWaitsAndTheOthersGoOn) {
  const uint64_t large = Add(a_), small = Add(b_);
  SequenceState& score = sequences_.Of(b_);
  const_cast<ValidRequest*>(score.body)->score_only = true;
  queue_.Add(score, now_);
  queue_.BeginPass(now_);
  EXPECT_EQ(queue_.Next(), large);
  queue_.Close({0, true});
  EXPECT_EQ(queue_.Next(), score.id.counter);
  queue_.Take(score.id.counter, now_);
  EXPECT_EQ(queue_.Next(), std::nullopt);
  EXPECT_THAT(Order(), ElementsAre(large, small)) << "the next pass asks again";
}

TEST_F(FairQueueTest, BehindAPromptThatIsToBeScoredOthersGoOn) {
  SequenceState& scored = sequences_.Of(a_);
  scored.owes_score = true;
  queue_.Add(scored, now_);
  const uint64_t plain = Add(a_);
  queue_.BeginPass(now_);
  EXPECT_EQ(queue_.Next(), scored.id.counter);
  queue_.Close(FairQueue::KindOf(scored));
  EXPECT_EQ(queue_.Next(), plain);
}

TEST_F(FairQueueTest, WhatIsPassedOverComesAgainInTheNextPassAndLetsTheNextOfItsTenantGo) {
  const std::vector<uint64_t> of_a = {Add(a_), Add(a_)};
  queue_.BeginPass(now_);
  EXPECT_EQ(queue_.Next(), of_a[0]);
  queue_.PassOver(of_a[0]);
  EXPECT_EQ(queue_.Next(), of_a[1]);
  queue_.Take(of_a[1], now_);
  EXPECT_EQ(queue_.Next(), std::nullopt);
  EXPECT_THAT(Order(), ElementsAre(of_a[0]));
}

TEST_F(FairQueueTest, WhatLeavesInTheMiddleOfAPassIsNotOffered) {
  const std::vector<uint64_t> of_a = {Add(a_), Add(a_), Add(a_)};
  queue_.BeginPass(now_);
  queue_.PassOver(of_a[0]);
  for (const uint64_t counter : of_a) queue_.Remove(counter);
  queue_.Remove(of_a[0]);
  EXPECT_EQ(queue_.Next(), std::nullopt);
  EXPECT_EQ(queue_.size(), 0u);
  EXPECT_THAT(Order(), IsEmpty());
}

}  // namespace
}  // namespace baton
