#include "common/base/digest.h"

#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(TokensDigestTest, DependsOnEveryTokenItsPlaceAndTheLength) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_EQ(TokensDigest(tokens), TokensDigest(std::vector<int32_t>{1, 2, 3}));
  EXPECT_NE(TokensDigest(tokens), TokensDigest(std::vector<int32_t>{1, 2, 4}));
  EXPECT_NE(TokensDigest(tokens), TokensDigest(std::vector<int32_t>{2, 1, 3}));
  EXPECT_NE(TokensDigest(tokens), TokensDigest(std::vector<int32_t>{1, 2}));
  EXPECT_NE(TokensDigest(tokens), TokensDigest(std::vector<int32_t>{1, 2, 3, 0}));
}

TEST(TokensDigestTest, OfNoTokensIsTheHashOfNothing) {
  EXPECT_EQ(TokensDigest({}), 0x2D06800538D394C2ull);  // XXH3-64 of "", from its specification.
}

}  // namespace
}  // namespace baton
