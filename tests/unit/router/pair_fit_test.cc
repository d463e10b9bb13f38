#include "router/pair_fit.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using testing::HasSubstr;

HelloInfo Hello() {
  return {.kv_wire_version = 2, .numerics_id = "n", .layout_digest = 3, .model_digest = 4};
}

TEST(PairFitTest, WhatDoesNotFitIsNamedAndEachSuchDifferenceKeepsTwoFromPairing) {
  const std::vector<std::pair<const char*, std::function<void(HelloInfo&)>>> table = {
      {"--kv-security is authenticated at the prefill worker and tls at the decode worker",
       [](HelloInfo& h) { h.kv_tls = true; }},
      {"--kv-dtype", [](HelloInfo& h) { h.layout_digest = 5; }},
      {"versions 2 and 3", [](HelloInfo& h) { h.kv_wire_version = 3; }},
  };
  for (const auto& [why, change] : table) {
    HelloInfo other = Hello();
    change(other);
    EXPECT_THAT(WhyNoPair(Hello(), other), HasSubstr(why));
    EXPECT_NE(PairOf(Hello()), PairOf(other)) << why;
    EXPECT_EQ(GroupOf(Hello()), GroupOf(other)) << why;
    EXPECT_EQ(WhyNoPair(other, other), "") << why;
    EXPECT_EQ(PairOf(other), PairOf(other)) << why;
  }
}

TEST(PairFitTest, OtherBitsAreAnotherGroupAndAnotherPair) {
  HelloInfo other = Hello();
  other.numerics_id = "m";
  EXPECT_NE(GroupOf(Hello()), GroupOf(other));
  EXPECT_NE(PairOf(Hello()), PairOf(other));
  other = Hello();
  other.model_digest = 5;
  EXPECT_NE(GroupOf(Hello()), GroupOf(other));
  EXPECT_NE(PairOf(Hello()), PairOf(other));
}

TEST(PairFitTest, RanksBlocksAndNcclKeepNobodyFromPairing) {
  HelloInfo other = Hello();
  other.tp_size = 4;
  other.block_size = 32;
  other.protocol_version = 3;
  other.nccl_version = "2.23.4";
  EXPECT_EQ(WhyNoPair(Hello(), other), "");
  EXPECT_EQ(PairOf(Hello()), PairOf(other));
}

TEST(PairFitTest, WhatAWorkerDoesNotTellIsWhatItHasByDefault) {
  for (const char* address : {"127.0.0.1:7", "127.8.9.1:7", "localhost:7"}) {
    EXPECT_FALSE(DefaultKvTls(address)) << address;
  }
  for (const char* address : {"10.0.0.1:7", "decode-0.decode:7"}) {
    EXPECT_TRUE(DefaultKvTls(address)) << address;
  }
}

}  // namespace
}  // namespace baton
