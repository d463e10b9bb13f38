#include "router/admission_queue.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/error.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ValidRequest Body(int32_t prompt, int64_t bytes, int32_t num_prompts = 1) {
  ValidRequest body;
  body.prompts.assign(num_prompts, std::vector<int32_t>(prompt, 7));
  body.bytes = bytes;
  body.prompt_param = "prompt";
  return body;
}

class AdmissionQueueTest : public testing::Test {
 protected:
  // Those that wait, in the order in which they are offered.
  std::vector<uint64_t> Order(bool holds) {
    std::vector<uint64_t> counters;
    std::optional<QueueKey> last;
    while ((last = queue_.Next(holds, last))) counters.push_back(std::get<1>(*last));
    return counters;
  }
  RouterNodeOptions options_{
      .max_queued_requests = 3, .max_queued_tokens = 100, .max_queued_bytes = 1000};
  AdmissionQueue queue_{options_};
  SequenceBuilder sequences_;
};

TEST_F(AdmissionQueueTest, EachCapIsReachedAndNotExceeded) {
  EXPECT_TRUE(queue_.Admit(1, Body(30, 500, 2)).ok());
  EXPECT_EQ(queue_.num_tokens(), 60);
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Admit(2, Body(41, 1))));
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Admit(2, Body(1, 501))));
  EXPECT_TRUE(queue_.Admit(2, Body(40, 500)).ok());
  EXPECT_EQ(queue_.num_requests(), 2);
  EXPECT_EQ(queue_.num_tokens(), 100);
  queue_.Leave(1);
  EXPECT_TRUE(queue_.Admit(3, Body(1, 1)).ok());
  EXPECT_TRUE(queue_.Admit(4, Body(1, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue_.Admit(5, Body(1, 1)))) << "four requests";
}

TEST_F(AdmissionQueueTest, WhatLeavesTwiceIsCountedOnceAndWhatWasRefusedNever) {
  ASSERT_TRUE(queue_.Admit(1, Body(60, 600)).ok());
  ASSERT_FALSE(queue_.Admit(2, Body(60, 600)).ok());
  queue_.Leave(2);
  EXPECT_EQ(queue_.num_tokens(), 60);
  queue_.Leave(1);
  queue_.Leave(1);
  EXPECT_EQ(queue_.num_requests(), 0);
  EXPECT_EQ(queue_.num_tokens(), 0);
  EXPECT_TRUE(queue_.Admit(3, Body(100, 1000)).ok());
}

TEST_F(AdmissionQueueTest, WhatAnEmptyQueueWouldNotHoldIsInvalidAndNamed) {
  const absl::Status tokens = queue_.Admit(1, Body(51, 1, 2));
  EXPECT_TRUE(absl::IsInvalidArgument(tokens));
  EXPECT_THAT(std::string(tokens.message()), HasSubstr("102 tokens"));
  EXPECT_EQ(ErrorParam(tokens), "prompt");
  const absl::Status bytes = queue_.Admit(1, Body(1, 1001));
  EXPECT_TRUE(absl::IsInvalidArgument(bytes));
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("1001"));
  for (const int32_t n : {0, kMaxSequencesPerRequest + 1}) {
    ValidRequest body = Body(1, 1);
    body.num_choices = n;
    EXPECT_EQ(ErrorParam(queue_.Admit(1, body)), "n") << n;
  }
  EXPECT_EQ(queue_.num_requests(), 0);
}

TEST_F(AdmissionQueueTest, PriorityGoesBeforeArrivalAndHoldersApart) {
  std::vector<SequenceState*> all;
  for (const int32_t priority : {0, 1, -1, 0}) all.push_back(&sequences_.New(priority));
  SequenceState& holder = sequences_.New(-5);
  holder.prefill.call = 9;
  queue_.Add(holder);
  for (auto it = all.rbegin(); it != all.rend(); ++it) queue_.Add(**it);
  EXPECT_THAT(Order(false), ElementsAre(3, 1, 4, 2));
  EXPECT_THAT(Order(true), ElementsAre(5));
  EXPECT_TRUE(queue_.Contains(holder));
  queue_.Remove(*all[0]);
  queue_.Remove(*all[0]);
  EXPECT_FALSE(queue_.Contains(*all[0]));
  EXPECT_THAT(Order(false), ElementsAre(3, 4, 2));
}

TEST_F(AdmissionQueueTest, WhoLetsItsSideGoMovesToTheOthersWhenItIsAddedAgain) {
  SequenceState& sequence = sequences_.New();
  sequence.decode.call = 4;
  queue_.Add(sequence);
  sequence.decode.call = 0;
  queue_.Add(sequence);
  EXPECT_THAT(Order(true), IsEmpty());
  EXPECT_THAT(Order(false), ElementsAre(1));
}

TEST_F(AdmissionQueueTest, TheNextIsFoundWhenTheOneBeforeHasLeft) {
  SequenceState& first = sequences_.New();
  queue_.Add(first);
  queue_.Add(sequences_.New());
  const auto at = queue_.Next(false, std::nullopt);
  queue_.Remove(first);
  EXPECT_EQ(std::get<1>(*queue_.Next(false, at)), 2u);
}

}  // namespace
}  // namespace baton
