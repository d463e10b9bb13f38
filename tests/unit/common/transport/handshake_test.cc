#include "common/transport/handshake.h"

#include <vector>

#include "common/base/random.h"
#include "common/transport/pair_key.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

Hello SomeHello() {
  Hello hello{.sender = 11, .receiver = 22, .pool = {16, {0, 4}}};
  hello.nonce.fill(3);
  return hello;
}

Challenge SomeChallenge() {
  Challenge challenge{.pool = {32, {2, 4}}};
  challenge.nonce.fill(4);
  return challenge;
}

PairKey Key(uint8_t fill) {
  PairKey key;
  key.fill(fill);
  return key;
}

TEST(HandshakeTest, BodiesComeBackAsTheyWent) {
  auto hello = DecodeHello(EncodeHello(SomeHello()));
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(EncodeHello(*hello), EncodeHello(SomeHello()));
  EXPECT_EQ(hello->sender, 11u);
  EXPECT_EQ(hello->receiver, 22u);
  Challenge with_proof = SomeChallenge();
  with_proof.proof = ReceiverProof(Key(1), SomeHello(), SomeChallenge());
  auto challenge = DecodeChallenge(EncodeChallenge(with_proof));
  ASSERT_TRUE(challenge.ok());
  EXPECT_TRUE(SameMac(challenge->proof, with_proof.proof));
  EXPECT_EQ(challenge->pool.heads.first, 2);
}

TEST(HandshakeTest, RefusesWrongSizesAndImpossiblePools) {
  const auto bytes = EncodeHello(SomeHello());
  EXPECT_FALSE(DecodeHello(std::span(bytes).first(kHelloBytes - 1)).ok());
  EXPECT_FALSE(DecodeChallenge(std::span(bytes)).ok());
  EXPECT_FALSE(DecodeProof(std::span(bytes)).ok());
  // One byte too few or too many, of each.
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back({});
  EXPECT_FALSE(DecodeHello(longer).ok());
  const auto challenge = EncodeChallenge(SomeChallenge());
  ASSERT_TRUE(DecodeChallenge(challenge).ok());
  EXPECT_FALSE(DecodeChallenge(std::span(challenge).first(kChallengeBytes - 1)).ok());
  longer.assign(challenge.begin(), challenge.end());
  longer.push_back({});
  EXPECT_FALSE(DecodeChallenge(longer).ok());
  Challenge impossible = SomeChallenge();
  impossible.pool.heads.count = 0;
  EXPECT_FALSE(DecodeChallenge(EncodeChallenge(impossible)).ok());
  Hello hello = SomeHello();
  hello.receiver = 0;
  EXPECT_FALSE(DecodeHello(EncodeHello(hello)).ok());
  hello = SomeHello();
  hello.sender = 0;
  EXPECT_FALSE(DecodeHello(EncodeHello(hello)).ok());
  hello = SomeHello();
  hello.pool.block_size = -1;
  EXPECT_FALSE(DecodeHello(EncodeHello(hello)).ok());
}

TEST(HandshakeTest, AProofDependsOnTheKeyAndOnEveryBitOfTheTranscript) {
  const Mac good = SenderProof(Key(1), SomeHello(), SomeChallenge());
  EXPECT_TRUE(SameMac(good, SenderProof(Key(1), SomeHello(), SomeChallenge())));
  EXPECT_FALSE(SameMac(good, SenderProof(Key(2), SomeHello(), SomeChallenge())));
  // A proof of one side is not one of the other.
  EXPECT_FALSE(SameMac(good, ReceiverProof(Key(1), SomeHello(), SomeChallenge())));
  Hello hello = SomeHello();
  hello.sender ^= 1;
  EXPECT_FALSE(SameMac(good, SenderProof(Key(1), hello, SomeChallenge())));
  hello = SomeHello();
  hello.receiver ^= 1;
  EXPECT_FALSE(SameMac(good, SenderProof(Key(1), hello, SomeChallenge())));
  for (RankPlace Hello::*place : {&Hello::sender_place, &Hello::receiver_place}) {
    for (const RankPlace other : {RankPlace{1, 2}, {0, 2}}) {
      hello = SomeHello();
      hello.*place = other;
      EXPECT_FALSE(SameMac(good, SenderProof(Key(1), hello, SomeChallenge())));
    }
  }
  hello = SomeHello();
  hello.nonce[31] ^= 0x80;
  EXPECT_FALSE(SameMac(good, SenderProof(Key(1), hello, SomeChallenge())));
  Challenge challenge = SomeChallenge();
  challenge.nonce[0] ^= 1;
  EXPECT_FALSE(SameMac(good, SenderProof(Key(1), SomeHello(), challenge)));
  challenge = SomeChallenge();
  challenge.pool.block_size = 64;
  EXPECT_FALSE(SameMac(good, SenderProof(Key(1), SomeHello(), challenge)));
}

TEST(HandshakeTest, NoncesAreFresh) {
  auto a = NewNonce();
  auto b = NewNonce();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, *b);
}

TEST(HandshakeTest, AnyBytesGiveAValueOrAStatus) {
  Random random(5);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random.Below(2) == 0 ? kHelloBytes : random.Below(100));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(4));
    if (auto hello = DecodeHello(bytes); hello.ok()) {
      ASSERT_GT(hello->pool.block_size, 0);
    }
    if (auto challenge = DecodeChallenge(bytes); challenge.ok()) {
      ASSERT_GT(challenge->pool.heads.count, 0);
    }
  }
}

}  // namespace
}  // namespace baton
