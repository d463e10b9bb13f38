#include "common/transport/pair_key.h"

#include <algorithm>
#include <iterator>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(PairKeyTest, IsAFunctionOfSecretAndBothIncarnationsInOrder) {
  TransportSecret secret;
  secret.fill(9);
  const PairKey key = DerivePairKey(secret, 1, 2);
  EXPECT_EQ(key, DerivePairKey(secret, 1, 2));
  EXPECT_NE(key, DerivePairKey(secret, 2, 1));
  EXPECT_NE(key, DerivePairKey(secret, 1, 3));
  secret[31] ^= 1;
  EXPECT_NE(key, DerivePairKey(secret, 1, 2));
}

// HMAC-SHA256 with key 32 x 0x09 over "baton pair key v1" || 1 || 2 (u64, little endian), computed
// with another program (Python hmac).
TEST(PairKeyTest, IsHmacSha256OfTheDocumentedMessage) {
  TransportSecret secret;
  secret.fill(9);
  const PairKey key = DerivePairKey(secret, 1, 2);
  const uint8_t start[] = {0xAC, 0x09, 0x2D, 0xB6, 0x1E, 0xE5, 0x8A, 0x16,
                           0x3B, 0xBA, 0xC0, 0xA5, 0x5B, 0x3C, 0x1A, 0xD7};
  EXPECT_TRUE(std::equal(std::begin(start), std::end(start), key.begin()));
}

TEST(PairKeyTest, SecretsAreFresh) {
  auto a = NewSecret();
  auto b = NewSecret();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, *b);
}

}  // namespace
}  // namespace baton
