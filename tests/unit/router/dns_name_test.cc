#include "router/dns_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using ::testing::Contains;

TEST(DnsNameTest, HasAHostAndAPort) {
  const auto name = ParseDnsName("--decode", "dns:///decode.ns.svc.cluster.local.:7000");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->host, "decode.ns.svc.cluster.local.");
  EXPECT_EQ(name->port, "7000");
}

TEST(DnsNameTest, RefusesWhatIsNotANameWithAPort) {
  for (const char* bad :
       {"decode:7000", "dns:///decode", "dns:///:7000", "dns:///decode:0", "dns:///decode:65536",
        "dns:///decode:http", "dns://8.8.8.8/decode:7000", "dns:///a/b:7000", "dns:///[::1]:7000",
        "dns:///::1:7000", "dns:decode:7000", "dns:///", "dns:///a b:7000"}) {
    const auto name = ParseDnsName("--decode", bad);
    EXPECT_FALSE(name.ok()) << bad;
    EXPECT_EQ(name.status().message(),
              std::string("--decode ") + bad + ": must be dns:///NAME:PORT");
  }
}

TEST(DnsNameTest, TheSystemKnowsThisMachineAndNoInvalidName) {
  const auto found = SystemResolveHost("localhost");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, testing::AnyOf(Contains("127.0.0.1"), Contains("::1")));
  // Never reaches a server: no label is that long.
  EXPECT_FALSE(SystemResolveHost(std::string(80, 'a') + ".invalid").ok());
}

TEST(DnsNameTest, AnIpv6AddressIsToldInBrackets) {
  EXPECT_EQ(JoinHostPort("10.0.0.2", "7000"), "10.0.0.2:7000");
  EXPECT_EQ(JoinHostPort("2001:db8::2", "7000"), "[2001:db8::2]:7000");
}

}  // namespace
}  // namespace baton
