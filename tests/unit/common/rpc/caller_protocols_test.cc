#include "common/rpc/caller_protocols.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/protocol_version.h"

namespace baton {
namespace {

TEST(CallerProtocolsTest, WhoHasSaidNothingSpeaksThePresentProtocol) {
  CallerProtocols callers;
  callers.Note("ipv4:10.0.0.1:1", 1);
  callers.Note("ipv4:10.0.0.1:2", 2);
  callers.Note("ipv4:10.0.0.1:3", 3);
  callers.Note("ipv4:10.0.0.1:4", 0);
  EXPECT_EQ(callers.Of("ipv4:10.0.0.1:1"), 1);
  EXPECT_EQ(callers.Of("ipv4:10.0.0.1:2"), 2);
  for (const char* other : {"ipv4:10.0.0.1:3", "ipv4:10.0.0.1:4", "ipv4:10.0.0.2:1"}) {
    EXPECT_EQ(callers.Of(other), kProtocolVersion) << other;
  }
}

TEST(CallerProtocolsTest, ThePortOfARouterThatIsGoneIsTheNextOnes) {
  CallerProtocols callers;
  callers.Note("ipv4:10.0.0.1:1", 1);
  callers.Note("ipv4:10.0.0.1:1", kProtocolVersion);
  EXPECT_EQ(callers.Of("ipv4:10.0.0.1:1"), kProtocolVersion);
}

TEST(CallerProtocolsTest, TheLastOnesAreKeptAndNoMore) {
  CallerProtocols callers;
  const auto connection = [](size_t port) { return absl::StrCat("ipv4:10.0.0.1:", port); };
  for (size_t port = 0; port < kKeptCallers; ++port) callers.Note(connection(port), 1);
  callers.Note(connection(0), 1);  // Said again it is the last one, and takes no other's place.
  EXPECT_EQ(callers.Of(connection(1)), 1);
  callers.Note(connection(kKeptCallers), 1);
  EXPECT_EQ(callers.Of(connection(0)), 1);
  EXPECT_EQ(callers.Of(connection(1)), kProtocolVersion);
  EXPECT_EQ(callers.Of(connection(kKeptCallers)), 1);
}

}  // namespace
}  // namespace baton
