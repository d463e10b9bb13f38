#include "common/tls/spiffe_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

TEST(SpiffeIdTest, EveryRoleComesBackFromItsUri) {
  for (const TlsRole role : kTlsRoles) {
    const std::string uri = absl::StrCat("spiffe://a.b/ns/n-1/sa/my-baton-", RoleWord(role));
    const absl::StatusOr<SpiffeId> id = ParseSpiffeId(uri);
    ASSERT_TRUE(id.ok()) << uri;
    EXPECT_EQ(id->trust_domain, "a.b");
    EXPECT_EQ(id->name_space, "n-1");
    EXPECT_EQ(id->release, "my-baton");
    EXPECT_EQ(id->role, role);
    EXPECT_EQ(id->ToUri(), uri);
  }
}

TEST(SpiffeIdTest, WhatIsNotExactlyOfTheFormIsRefused) {
  const std::string nul("spiffe://t/ns/n/sa/r-\0router", 28);
  for (const std::string& uri :
       {std::string(), std::string("spiffe://"), std::string("https://t/ns/n/sa/r-router"),
        std::string("spiffe://t/ns/n/sa/r-router/"), std::string("spiffe://t/ns/n/sa/r-Router"),
        std::string("spiffe://t/ns/n/sa/router"), std::string("spiffe://t/ns/n/sa/-router"),
        std::string("spiffe://t/ns//sa/r-router"), std::string("spiffe:///ns/n/sa/r-router"),
        std::string("spiffe://t/sa/n/ns/r-router"), std::string("spiffe://t/ns/n/sa/r-worker"),
        std::string("spiffe://t/ns/n/sa/r-router?x"), std::string(" spiffe://t/ns/n/sa/r-router"),
        std::string("spiffe://t,URI:spiffe://u/ns/n/sa/r-router"), nul}) {
    EXPECT_FALSE(ParseSpiffeId(uri).ok()) << uri;
  }
}

TEST(SpiffeIdTest, OneReleaseIsAllButTheRole) {
  const SpiffeId id = *ParseSpiffeId("spiffe://t/ns/n/sa/r-router");
  EXPECT_TRUE(id.SameRelease(*ParseSpiffeId("spiffe://t/ns/n/sa/r-decode")));
  for (const char* other : {"spiffe://u/ns/n/sa/r-router", "spiffe://t/ns/m/sa/r-router",
                            "spiffe://t/ns/n/sa/s-router", "spiffe://t/ns/n/sa/r-r-router"}) {
    EXPECT_FALSE(id.SameRelease(*ParseSpiffeId(other))) << other;
  }
}

TEST(SpiffeIdTest, WordsCannotCarryAnotherName) {
  EXPECT_TRUE(CheckIdWord("--release", "my-baton.2").ok());
  for (const char* bad : {"", "a/b", "a,URI:b", "a b", "a\nb"}) {
    EXPECT_FALSE(CheckIdWord("--release", bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace baton
