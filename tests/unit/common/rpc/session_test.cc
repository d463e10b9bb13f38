#include "common/rpc/session.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

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

TEST_F(SessionTest, WhatIsClearedIsNotSent) {
  output_.Add(EndOf(1));
  output_.Clear();
  EXPECT_TRUE(output_.empty());
  EXPECT_EQ(output_.bytes(), 0);
}

}  // namespace
}  // namespace baton
