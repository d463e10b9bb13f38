#include "common/rpc/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/message_wire.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

using Output = SessionOutput<v1::ToRouter, v1::CallTold>;

v1::CallTold EndOf(uint64_t call, size_t bytes = 0) {
  v1::CallTold told;
  told.set_call(call);
  told.mutable_end()->set_message(std::string(bytes, 'x'));
  return told;
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() { input_.set_key(77); }
  v1::SessionFrame Next() { return SealFrame(output_.Next(), 77); }

  Output output_;
  SessionInput input_;
  v1::ToRouter message_;
};

TEST_F(SessionTest, WhatIsAddedArrivesInOrderAndASignOfLifeIsEmpty) {
  output_.Add(EndOf(3));
  output_.Add(EndOf(1));
  EXPECT_GT(output_.bytes(), 0);
  ASSERT_TRUE(input_.Take(Next(), &message_).ok());
  ASSERT_EQ(message_.calls_size(), 2);
  EXPECT_EQ(message_.calls(0).call(), 3u);
  EXPECT_EQ(message_.calls(1).call(), 1u);
  EXPECT_TRUE(output_.empty());
  EXPECT_GT(output_.bytes(), 0) << "it is being written";
  output_.Written();
  EXPECT_EQ(output_.bytes(), 0);
  ASSERT_TRUE(input_.Take(Next(), &message_).ok());
  EXPECT_EQ(message_.calls_size(), 0);
  EXPECT_EQ(message_.number(), 2u);
}

TEST_F(SessionTest, AMessageThatIsDamagedLostOrRepeatedIsNotTaken) {
  const v1::SessionFrame first = Next();
  output_.Add(EndOf(1));
  const v1::SessionFrame second = Next();
  EXPECT_TRUE(absl::IsDataLoss(input_.Take(second, &message_)));  // The first is missing.
  ASSERT_TRUE(input_.Take(first, &message_).ok());
  EXPECT_TRUE(absl::IsDataLoss(input_.Take(first, &message_)));
  for (size_t byte = 0; byte < second.message().size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      v1::SessionFrame damaged = second;
      (*damaged.mutable_message())[byte] ^= static_cast<char>(1 << bit);
      EXPECT_TRUE(absl::IsDataLoss(input_.Take(damaged, &message_))) << byte << " " << bit;
    }
  }
  EXPECT_TRUE(input_.Take(second, &message_).ok());
}

TEST_F(SessionTest, AMessageOfAnotherSessionIsNotTaken) {
  EXPECT_TRUE(absl::IsDataLoss(input_.Take(SealFrame(output_.Next(), 78), &message_)));
}

TEST_F(SessionTest, WhatIsNoMessageIsNotTaken) {
  v1::SessionFrame frame;
  frame.set_message("\xff\xff");
  frame.set_crc32c(ChecksumOf(frame.message(), 77));
  EXPECT_TRUE(absl::IsDataLoss(input_.Take(frame, &message_)));
}

// So that a short one does not wait for megabytes of others.
TEST_F(SessionTest, AMessageCarriesLittleAtATimeAndOfALargePartThatAlone) {
  for (uint64_t call = 1; call <= 8; ++call) output_.Add(EndOf(call, kMostMessageBytes / 4));
  output_.Add(EndOf(9, 4 * kMostMessageBytes));
  output_.Add(EndOf(10));
  uint64_t next = 1;
  for (const int expected : {3, 3, 2, 1, 1}) {
    const v1::SessionFrame frame = Next();
    ASSERT_TRUE(input_.Take(frame, &message_).ok());
    EXPECT_EQ(message_.calls_size(), expected);
    for (const v1::CallTold& told : message_.calls()) EXPECT_EQ(told.call(), next++);
  }
  EXPECT_TRUE(output_.empty());
}

// ---- What passes what --------------------------------------------------------------------------

// Of the next message, in order.
std::vector<uint64_t> CallsOf(const v1::ToRouter& message) {
  std::vector<uint64_t> calls;
  for (const v1::CallTold& told : message.calls()) calls.push_back(told.call());
  return calls;
}

TEST_F(SessionTest, BulkIsPassedByAllButWhatIsOfItsOwnCall) {
  output_.AddBulk(EndOf(1, 10));
  output_.AddBulk(EndOf(2, 10));
  output_.Add(EndOf(3));
  output_.Add(EndOf(1));
  output_.Add(EndOf(4));
  output_.AddBulk(EndOf(5, 10));
  const v1::ToRouter message = output_.Next();
  EXPECT_THAT(CallsOf(message), ElementsAre(3, 4, 1, 2, 1, 5));
  EXPECT_EQ(message.calls(2).end().message().size(), 10u);
  EXPECT_TRUE(message.calls(4).end().message().empty());
}

TEST_F(SessionTest, OnceItsBulkIsSentACallPassesThatOfOthersAgain) {
  output_.AddBulk(EndOf(1, kMostMessageBytes));
  output_.AddBulk(EndOf(2, kMostMessageBytes));
  EXPECT_THAT(CallsOf(output_.Next()), ElementsAre(1));
  output_.Add(EndOf(1));
  EXPECT_THAT(CallsOf(output_.Next()), ElementsAre(1));
  EXPECT_THAT(CallsOf(output_.Next()), ElementsAre(2));
}

TEST_F(SessionTest, BulkIsNotPassedForEver) {
  output_.AddBulk(EndOf(1, 10));
  output_.AddBulk(EndOf(2, 4 * kMostMessageBytes));
  std::vector<int> sent_at;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 3; ++j) output_.Add(EndOf(9, kMostMessageBytes / 2));
    const v1::ToRouter message = output_.Next();
    if (message.calls(0).call() != 9) sent_at.push_back(i);
  }
  EXPECT_THAT(sent_at, ElementsAre(3, 7)) << "every fourth";
}

// It would come out of its order.
TEST_F(SessionTest, BulkDoesNotPassWhatItsCallHasToSayBefore) {
  for (int i = 0; i < 20; ++i) output_.Add(EndOf(9, kMostMessageBytes / 2));
  output_.Add(EndOf(1));
  output_.AddBulk(EndOf(1, 10));
  std::vector<size_t> of_call;
  while (!output_.empty()) {
    const v1::ToRouter message = output_.Next();
    for (const v1::CallTold& told : message.calls()) {
      if (told.call() == 1) of_call.push_back(told.end().message().size());
    }
  }
  EXPECT_THAT(of_call, ElementsAre(0, 10));
}

TEST_F(SessionTest, WhatOpensACallThatIsWithdrawnKeepsItsPlaceAndNothingElseIsSent) {
  for (const uint64_t call : {1, 2, 3}) output_.AddBulk(EndOf(call, 1000));
  output_.Add(EndOf(2));
  const auto cut = [](v1::CallTold& told) { told.mutable_end()->clear_message(); };
  const int64_t before = output_.bytes();
  EXPECT_TRUE(output_.Withdraw(2, cut));
  EXPECT_LT(output_.bytes(), before - 1000);
  EXPECT_FALSE(output_.Withdraw(4, cut)) << "nothing of it waits";
  const v1::ToRouter message = output_.Next();
  EXPECT_THAT(CallsOf(message), ElementsAre(1, 2, 3));
  EXPECT_TRUE(message.calls(1).end().message().empty());
  output_.Written();
  EXPECT_EQ(output_.bytes(), 0);
}

TEST_F(SessionTest, WhatWasSentIsNotWithdrawn) {
  output_.AddBulk(EndOf(1, kMostMessageBytes));
  output_.Add(EndOf(1, 10));  // Behind what opens it.
  EXPECT_THAT(CallsOf(output_.Next()), ElementsAre(1));
  EXPECT_FALSE(output_.Withdraw(1, [](v1::CallTold&) {}));
  output_.Add(EndOf(1, 20));
  const v1::ToRouter message = output_.Next();
  ASSERT_EQ(message.calls_size(), 2);
  EXPECT_EQ(message.calls(0).end().message().size(), 10u);
}

TEST_F(SessionTest, BulkThatIsDroppedIsNotSent) {
  output_.AddBulk(EndOf(1, 1000));
  output_.AddBulk(EndOf(2, 1000));
  output_.AddBulk(EndOf(1, 1000));
  EXPECT_GT(output_.BulkBytesOf(1), 2000);
  output_.DropBulk(1);
  EXPECT_EQ(output_.BulkBytesOf(1), 0);
  output_.Add(EndOf(1));
  EXPECT_THAT(CallsOf(output_.Next()), ElementsAre(1, 2));
}

// 10^6 numbers (GenerationLimits::max_scores), whatever number of them is beside each, for prompts
// of so many tokens at most.
TEST_F(SessionTest, AllScoresOfARequestMayWaitAtOnce) {
  for (const int64_t most_tokens : {8192, 32'768, 131'072, 262'144}) {
    for (int32_t top = 0; top <= 20; ++top) {
      const int64_t num_positions = std::min(most_tokens, int64_t{1'000'000} / (top + 1));
      ScoresEvent piece{.attempt = 7};
      const int64_t at_once = kPieceScores / (top + 1);
      for (int64_t i = 0; i < at_once; ++i) {
        PromptLogprob one{.position = 262'143, .token = 300'000, .logprob = -1.5f, .rank = 300'000};
        one.top.assign(top, {.token = 300'000, .logprob = -1.5f});
        piece.logprobs.push_back(std::move(one));
      }
      v1::CallTold told;
      told.set_call(uint64_t{1} << 39);
      ToProto(piece, told.mutable_prefill());
      const auto bytes = static_cast<int64_t>(told.ByteSizeLong());
      EXPECT_LE((num_positions / at_once + 1) * bytes, kMostBulkBytes) << most_tokens << " " << top;
    }
  }
}

TEST_F(SessionTest, WhatWaitsOrIsBeingWrittenIsCounted) {
  const auto memory = std::make_shared<SessionMemory>(1000);
  SessionMemory::Share share(memory);
  Output output(&share);
  output.Add(EndOf(1, 100));
  output.AddBulk(EndOf(2, 100));
  EXPECT_EQ(share.bytes(), output.bytes());
  output.Next();
  EXPECT_GT(share.bytes(), 200);
  output.Add(EndOf(3, 100));
  output.Written();
  EXPECT_GT(share.bytes(), 100);
  EXPECT_LT(share.bytes(), 200);
  output.Clear();
  EXPECT_EQ(share.bytes(), 0);
}

TEST_F(SessionTest, WhatIsClearedIsNotSent) {
  output_.Add(EndOf(1));
  output_.Clear();
  EXPECT_TRUE(output_.empty());
  EXPECT_EQ(output_.bytes(), 0);
}

}  // namespace
}  // namespace baton
