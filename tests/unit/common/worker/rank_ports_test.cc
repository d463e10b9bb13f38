#include "common/worker/rank_ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ErrorOfPorts(const std::string& text, int size) {
  return std::string(ParseDataPorts(text, size).status().message());
}

std::string ErrorOfAddresses(const std::string& text, int size) {
  return std::string(ParseDataAddresses(text, size).status().message());
}

TEST(RankPortsTest, EachRankHasAPort) {
  EXPECT_THAT(*ParseDataPorts("0", 4), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(*ParseDataPorts("7000", 1), ElementsAre(7000));
  EXPECT_THAT(*ParseDataPorts("7000", 4), ElementsAre(7000, 7001, 7002, 7003));
  EXPECT_THAT(*ParseDataPorts("65534", 2), ElementsAre(65534, 65535));
  EXPECT_THAT(*ParseDataPorts("9,7", 2), ElementsAre(9, 7));
}

TEST(RankPortsTest, WrongPortsAreNamed) {
  for (const char* text : {"-1", "65536", "x", "", "1,2,x,4", "0,0", "1,65536", "1,", ",1"}) {
    EXPECT_THAT(ErrorOfPorts(text, 2), HasSubstr("--data-port " + std::string(text) + ": must be"));
  }
  EXPECT_THAT(ErrorOfPorts("65535", 2), HasSubstr("--data-port 65535: the ports of 2 ranks"));
  EXPECT_THAT(ErrorOfPorts("1,2,3", 2),
              HasSubstr("--data-port 1,2,3: has 3 ports; give one of each rank of --tp 2"));
  EXPECT_THAT(ErrorOfPorts("1,2", 4), HasSubstr("has 2 ports"));
  EXPECT_THAT(ErrorOfPorts("5,5", 2), HasSubstr("--data-port 5,5: each rank needs a port"));
}

TEST(RankPortsTest, EachRankHasAnAddressIfAny) {
  EXPECT_THAT(*ParseDataAddresses("", 4), IsEmpty());
  EXPECT_THAT(*ParseDataAddresses("h:5", 1), ElementsAre("h:5"));
  EXPECT_THAT(*ParseDataAddresses("h:5", 2), ElementsAre("h:5", "h:6"));
  EXPECT_THAT(*ParseDataAddresses("h:5,g:5", 2), ElementsAre("h:5", "g:5"));
}

TEST(RankPortsTest, WrongAddressesAreNamed) {
  for (const char* text : {"h", "h:0", "h:1,h", ":5", "h:1,"}) {
    EXPECT_THAT(ErrorOfAddresses(text, 2), HasSubstr("--advertise-data-address")) << text;
  }
  EXPECT_THAT(ErrorOfAddresses("h:1,h:2", 1), HasSubstr("has 2 addresses"));
  EXPECT_THAT(ErrorOfAddresses("h:1,h:2", 4), HasSubstr("has 2 addresses"));
  EXPECT_THAT(ErrorOfAddresses("h:1,h:1", 2), HasSubstr("each rank needs an address"));
  EXPECT_FALSE(ParseDataAddresses("h:65535", 2).ok());
}

}  // namespace
}  // namespace baton
