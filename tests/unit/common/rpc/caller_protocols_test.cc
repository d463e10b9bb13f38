#include "common/rpc/caller_protocols.h"

#include <gmock/gmock.h>
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

TEST(CallerProtocolsTest, WhoCannotCarryTheAddressesOfAllRanksIsRefused) {
  std::vector<DataRank> ranks;
  for (int32_t i = 0; i < 8; ++i) {
    ranks.push_back({.endpoint = absl::StrCat("rail", i, ".node-17.cluster.example.com:7001"),
                     .heads = {i, 1}});
  }
  const CallerProtocols long_names(ranks);
  for (const int32_t before : {1, 2}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(long_names.Check(before)));
    EXPECT_THAT(long_names.Check(before).message(), testing::HasSubstr("--advertise-data-address"));
  }
  for (const int32_t others : {0, 3, kProtocolVersion}) {
    EXPECT_TRUE(long_names.Check(others).ok()) << others;
  }
  EXPECT_TRUE(CallerProtocols().Check(1).ok());
  for (DataRank& rank : ranks) rank.endpoint = "10.0.0.1:7001";
  EXPECT_TRUE(CallerProtocols(ranks).Check(1).ok());
}

}  // namespace
}  // namespace baton
