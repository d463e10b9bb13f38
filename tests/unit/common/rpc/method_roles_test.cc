#include "common/rpc/method_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(MethodRolesTest, WorkIsTheRoutersAndOrdersAreTheAdmins) {
  EXPECT_THAT(RolesFor("/baton.v1.Decode/Decode"), Optional(ElementsAre(TlsRole::kRouter)));
  EXPECT_THAT(RolesFor("/baton.v1.Prefill/Send"), Optional(ElementsAre(TlsRole::kRouter)));
  EXPECT_THAT(RolesFor("/baton.v1.Cluster/Drain"), Optional(ElementsAre(TlsRole::kAdmin)));
  for (const char* method : {"Status", "Audit", "Drain"}) {
    EXPECT_THAT(RolesFor(absl::StrCat("/baton.v1.Admin/", method)),
                Optional(ElementsAre(TlsRole::kAdmin)))
        << method;
  }
  EXPECT_THAT(RolesFor("/baton.v1.Cluster/Hello"),
              Optional(ElementsAre(TlsRole::kRouter, TlsRole::kAdmin)));
}

TEST(MethodRolesTest, WhatIsNotListedIsNobodys) {
  for (const char* path : {"", "/", "/baton.v1.Cluster/New", "baton.v1.Cluster/Hello",
                           "/baton.v1.Cluster/hello", "/baton.v1.Cluster/Hello/"}) {
    EXPECT_EQ(RolesFor(path), std::nullopt) << path;
  }
}

}  // namespace
}  // namespace baton
