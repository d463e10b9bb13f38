#include "router/admission_queue.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/error.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ValidRequest Body(int32_t prompt, int64_t bytes, int32_t num_prompts = 1,
                  const std::string& tenant = "") {
  ValidRequest body{.tenant = tenant, .score_only = true, .timeout = seconds(1000)};
  body.prompts.assign(num_prompts, std::vector<int32_t>(prompt, 7));
  body.bytes = bytes;
  body.prompt_param = "prompt";
  return body;
}

class AdmissionQueueTest : public testing::Test {
 protected:
  absl::Status Admit(uint64_t request, const ValidRequest& body) {
    const absl::Status status = queue_.Check(body, now_);
    return status.ok() ? queue_.Admit(request, body, now_) : status;
  }
  // Those that wait, in the order in which they are offered.
  std::vector<uint64_t> Waiting() {
    std::vector<uint64_t> counters;
    queue_.waiting().BeginPass(now_);
    while (const auto next = queue_.waiting().Next()) {
      counters.push_back(*next);
      queue_.waiting().PassOver(*next);
    }
    return counters;
  }
  std::vector<uint64_t> Holders() {
    std::vector<uint64_t> counters;
    std::optional<QueueKey> last;
    while ((last = queue_.NextHolder(last))) counters.push_back(std::get<1>(*last));
    return counters;
  }
  // `count` requests of a tenant, all of one prompt token; the first has this key.
  void Fill(uint64_t first, int count, const std::string& tenant) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(Admit(first + i, Body(1, 1, 1, tenant)).ok());
  }
  // Workers take one request of one token each second, and there are always more.
  void Measure() {
    for (uint64_t key = 1000; key < 1020; ++key) {
      ASSERT_TRUE(queue_.Admit(key, Body(1, 1, 1, "measured"), now_).ok());
      queue_.OnTurn(true, now_);
      now_ += seconds(1);
      SequenceState& sequence = sequences_.New();
      sequence.request = key;
      queue_.Add(sequence, now_);
      queue_.Take(sequence, now_);
      queue_.End(key);
    }
  }
  Time now_{};
  RouterNodeOptions options_{
      .max_queued_requests = 3, .max_queued_tokens = 100, .max_queued_bytes = 1000};
  AdmissionQueue queue_{options_};
  SequenceBuilder sequences_;
  SequenceState* first_ = nullptr;
};

// ---- Caps --------------------------------------------------------------------------------------

TEST_F(AdmissionQueueTest, EachCapIsReachedAndNotExceeded) {
  EXPECT_TRUE(Admit(1, Body(30, 500, 2)).ok());
  EXPECT_EQ(queue_.num_tokens(), 60);
  EXPECT_TRUE(absl::IsResourceExhausted(Admit(2, Body(41, 1))));
  EXPECT_TRUE(absl::IsResourceExhausted(Admit(2, Body(1, 501))));
  EXPECT_TRUE(Admit(2, Body(40, 500)).ok());
  EXPECT_EQ(queue_.num_requests(), 2);
  EXPECT_EQ(queue_.num_tokens(), 100);
  queue_.End(1);
  EXPECT_TRUE(Admit(3, Body(1, 1)).ok());
  EXPECT_TRUE(Admit(4, Body(1, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Admit(5, Body(1, 1)))) << "four requests";
}

TEST_F(AdmissionQueueTest, WhatLeavesTwiceIsCountedOnceAndWhatWasRefusedNever) {
  ASSERT_TRUE(Admit(1, Body(60, 600)).ok());
  ASSERT_FALSE(Admit(2, Body(60, 600)).ok());
  queue_.End(2);
  EXPECT_EQ(queue_.num_tokens(), 60);
  SequenceState& sequence = sequences_.New();
  EXPECT_DEATH(queue_.Take(sequence, now_), "Contains") << "it was not added";
  for (int i = 0; i < 2; ++i) {
    queue_.Add(sequence, now_);
    queue_.Take(sequence, now_);
  }
  EXPECT_EQ(queue_.num_requests(), 0);
  EXPECT_EQ(queue_.num_tokens(), 0);
  EXPECT_EQ(queue_.num_tenants(), 1u) << "it runs";
  queue_.End(1);
  queue_.End(1);
  EXPECT_EQ(queue_.num_tenants(), 0u);
  EXPECT_TRUE(Admit(3, Body(100, 1000)).ok());
}

TEST_F(AdmissionQueueTest, WhatAnEmptyQueueWouldNotHoldIsInvalidAndNamed) {
  const absl::Status tokens = Admit(1, Body(51, 1, 2));
  EXPECT_TRUE(absl::IsInvalidArgument(tokens));
  EXPECT_THAT(std::string(tokens.message()), HasSubstr("102 tokens"));
  EXPECT_EQ(ErrorParam(tokens), "prompt");
  const absl::Status bytes = Admit(1, Body(1, 1001));
  EXPECT_TRUE(absl::IsInvalidArgument(bytes));
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("1001"));
  for (const int32_t n : {0, kMaxSequencesPerRequest + 1}) {
    ValidRequest body = Body(1, 1);
    body.num_choices = n;
    EXPECT_EQ(ErrorParam(Admit(1, body)), "n") << n;
  }
  EXPECT_EQ(queue_.num_requests(), 0);
}

// ---- A full queue ------------------------------------------------------------------------------

TEST_F(AdmissionQueueTest, TheNewestOfWhoFillsTheQueueGoesForAnother) {
  Fill(1, 3, "flood");
  EXPECT_EQ(queue_.GoesFor(Body(1, 1, 1, "flood")), std::nullopt);
  EXPECT_EQ(queue_.GoesFor(Body(1, 1, 1, "other")), 3u);
  queue_.End(3);
  EXPECT_EQ(queue_.GoesFor(Body(1, 1, 1, "other")), std::nullopt) << "there is room";
  ASSERT_TRUE(Admit(4, Body(1, 1, 1, "other")).ok());
  EXPECT_EQ(queue_.GoesFor(Body(1, 1, 1, "other")), std::nullopt) << "it would fill as much";
}

TEST_F(AdmissionQueueTest, WhoHasMostOfAFullQueueIsToldBeforeItAsks) {
  Fill(1, 2, "flood");
  EXPECT_FALSE(queue_.IsFull(now_).has_value()) << "there is room";
  Fill(3, 1, "other");
  const auto full = queue_.IsFull(now_);
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->tenant, "flood") << "for others one of its requests goes";
  EXPECT_EQ(full->status, Admit(4, Body(1, 1, 1, "flood")));
  queue_.End(2);
  EXPECT_FALSE(queue_.IsFull(now_).has_value());
}

TEST_F(AdmissionQueueTest, ATenantsPartOfTheQueueGoesByItsWeight) {
  ValidRequest heavy = Body(1, 1, 1, "heavy");
  heavy.weight = 2;
  ASSERT_TRUE(Admit(1, heavy).ok());
  ASSERT_TRUE(Admit(2, heavy).ok());
  ASSERT_TRUE(Admit(3, Body(1, 1, 1, "light")).ok());
  EXPECT_EQ(queue_.GoesFor(Body(1, 1, 1, "third")), std::nullopt) << "each has its part";
  heavy.weight = 1;
  queue_.End(2);
  ASSERT_TRUE(Admit(4, heavy).ok());
  EXPECT_EQ(queue_.GoesFor(Body(1, 1, 1, "third")), 4u);
}

TEST_F(AdmissionQueueTest, NobodyGoesInVain) {
  ASSERT_TRUE(Admit(1, Body(60, 1, 1, "a")).ok());
  ASSERT_TRUE(Admit(2, Body(40, 1, 1, "b")).ok());
  EXPECT_EQ(queue_.GoesFor(Body(10, 1, 1, "c")), 1u);
  EXPECT_EQ(queue_.GoesFor(Body(59, 990, 1, "c")), std::nullopt) << "it would fill more itself";
  EXPECT_EQ(queue_.GoesFor(Body(61, 1, 1, "c")), std::nullopt);
}

TEST_F(AdmissionQueueTest, NobodyGoesWhereOthersWouldStillFillTheQueue) {
  ASSERT_TRUE(Admit(1, Body(95, 1, 1, "a")).ok());
  ASSERT_TRUE(Admit(2, Body(1, 900, 1, "b")).ok());
  EXPECT_EQ(queue_.GoesFor(Body(1, 150, 1, "c")), std::nullopt) << "a has next to no bytes";
}

TEST_F(AdmissionQueueTest, ATenantsOwnRequestsDoNotGoForItsNextWhateverItsWeightIsByThen) {
  ASSERT_TRUE(Admit(1, Body(60, 1, 1, "a")).ok());
  ASSERT_TRUE(Admit(2, Body(40, 1, 1, "b")).ok());
  ValidRequest heavier = Body(10, 1, 1, "a");
  heavier.weight = 10;
  EXPECT_EQ(queue_.GoesFor(heavier), std::nullopt);
}

// ---- Predicted waits ---------------------------------------------------------------------------

TEST_F(AdmissionQueueTest, WhoWouldWaitForTooLongIsRefusedAtOnceAndToldWhenNot) {
  options_.max_queued_requests = 100;
  Measure();
  for (uint64_t key = 1; key <= 13; ++key) {
    ASSERT_TRUE(queue_.Admit(key, Body(1, 1, 1, "a"), now_).ok());
  }
  const absl::Status late = Admit(20, Body(1, 1, 1, "a"));
  EXPECT_TRUE(absl::IsResourceExhausted(late));
  EXPECT_FALSE(IsQuotaExceeded(late)) << "it is our load";
  EXPECT_EQ(RetryAfter(late), 3);
  EXPECT_TRUE(Admit(20, Body(1, 1, 1, "b")).ok()) << "another tenant's turn comes before";
}

// A head does not say its class.
TEST_F(AdmissionQueueTest, WhoFillsTheQueueIsToldHowLongItsLastClassWaits) {
  Measure();
  ValidRequest later = Body(1, 1, 1, "a");
  later.priority = 5;
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_TRUE(queue_.Admit(key, later, now_).ok());
  const auto full = queue_.IsFull(now_);
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(RetryAfter(full->status), 3);
}

TEST_F(AdmissionQueueTest, ADeadlineBeforeItsTurnIsRefusedToo) {
  options_.max_queued_requests = 100;
  Measure();
  Fill(1, 5, "a");
  ValidRequest hurried = Body(1, 1, 1, "a");
  hurried.timeout = seconds(3);
  EXPECT_EQ(RetryAfter(Admit(20, hurried)), 2);
  hurried.timeout = seconds(6);
  EXPECT_TRUE(Admit(20, hurried).ok());
}

TEST_F(AdmissionQueueTest, WhatIsOfAWorseClassIsNotWaitedFor) {
  options_.max_queued_requests = 100;
  Measure();
  ValidRequest batch = Body(1, 1, 1, "a");
  batch.priority = 1;
  for (uint64_t key = 1; key <= 10; ++key) ASSERT_TRUE(Admit(key, batch).ok());
  Fill(11, 3, "a");
  EXPECT_TRUE(Admit(20, Body(1, 1, 1, "a")).ok());
  EXPECT_FALSE(Admit(21, batch).ok());
}

TEST_F(AdmissionQueueTest, WithoutAMeasurementOrABoundNobodyIsRefused) {
  options_.max_queued_requests = 100;
  Fill(1, 50, "a");
  Measure();
  EXPECT_FALSE(Admit(60, Body(1, 1, 1, "a")).ok());
  options_.max_queue_wait = Duration::max();
  ValidRequest hurried = Body(1, 1, 1, "a");
  hurried.timeout = seconds(1);
  EXPECT_TRUE(Admit(60, hurried).ok());
}

// ---- Sequences ---------------------------------------------------------------------------------

TEST_F(AdmissionQueueTest, PriorityGoesBeforeArrivalAndHoldersApart) {
  std::vector<SequenceState*> all;
  for (const int32_t priority : {0, 1, -1, 0}) all.push_back(&sequences_.New(priority));
  SequenceState& holder = sequences_.New(-5);
  holder.prefill.call = 9;
  queue_.Add(holder, now_);
  for (auto it = all.rbegin(); it != all.rend(); ++it) queue_.Add(**it, now_);
  EXPECT_THAT(Waiting(), ElementsAre(3, 1, 4, 2));
  EXPECT_THAT(Holders(), ElementsAre(5));
  EXPECT_TRUE(queue_.Contains(holder));
  queue_.Remove(*all[0]);
  queue_.Remove(*all[0]);
  EXPECT_FALSE(queue_.Contains(*all[0]));
  EXPECT_THAT(Waiting(), ElementsAre(3, 4, 2));
}

TEST_F(AdmissionQueueTest, WhoseTenantIsGivenTokensBackMovesUpWhileItWaits) {
  for (uint64_t key = 1; key <= 2; ++key) {
    ASSERT_TRUE(Admit(key, Body(1, 1, 1, key == 1 ? "a" : "b")).ok());
    queue_.Charge(key, 10 * static_cast<int64_t>(key));
    queue_.Add(sequences_.Of(*queue_.AccountOf(key)), now_);
  }
  const auto first = [this] {
    queue_.waiting().BeginPass(now_);
    return queue_.waiting().Next();
  };
  EXPECT_EQ(first(), 1u);
  queue_.Charge(2, -25);
  EXPECT_EQ(first(), 2u);
}

TEST_F(AdmissionQueueTest, WhoLetsItsSideGoMovesToTheOthersWhenItIsAddedAgain) {
  SequenceState& sequence = sequences_.New();
  sequence.decode.call = 4;
  queue_.Add(sequence, now_);
  sequence.decode.call = 0;
  queue_.Add(sequence, now_);
  EXPECT_THAT(Holders(), IsEmpty());
  EXPECT_THAT(Waiting(), ElementsAre(1));
}

TEST_F(AdmissionQueueTest, TheNextHolderIsFoundWhenTheOneBeforeHasLeft) {
  for (int i = 0; i < 2; ++i) {
    SequenceState& sequence = sequences_.New();
    sequence.decode.call = 4 + i;
    queue_.Add(sequence, now_);
    if (i == 0) first_ = &sequence;
  }
  const auto at = queue_.NextHolder(std::nullopt);
  queue_.Remove(*first_);
  EXPECT_EQ(std::get<1>(*queue_.NextHolder(at)), 2u);
}

}  // namespace
}  // namespace baton
