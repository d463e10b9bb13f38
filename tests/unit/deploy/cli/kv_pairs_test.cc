#include "deploy/cli/kv_pairs.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

json Worker(const std::string& name, const std::string& nccl) {
  return {{"name", name}, {"address", name + ":1"}, {"nccl", nccl}};
}

json Pair(const std::string& decode, const std::string& transport, const std::string& why = "",
          int over_nccl = 0, int over_tcp = 0) {
  return {{"prefill", "prefill-0:1"},     {"decode", decode + ":1"},   {"transport", transport},
          {"security", "authenticated"},  {"nccl", "2.23.4"},          {"why", why},
          {"links_over_nccl", over_nccl}, {"links_over_tcp", over_tcp}};
}

json Status(json pairs) {
  return {{"workers",
           {Worker("prefill-0", "2.23.4"), Worker("decode-0", "2.23.4"), Worker("decode-1", "")}},
          {"kv_pairs", std::move(pairs)}};
}

TEST(KvPairsTest, EachPairSaysWhatCarriesItsKvHowItIsSecuredAndWhyNotNccl) {
  EXPECT_THAT(
      KvPairLines(Status(json::array({Pair("decode-0", "nccl+tcp", "no progress", 1, 1),
                                      Pair("decode-0", "nccl", "", 1), Pair("decode-0", "nccl?"),
                                      Pair("decode-1", "tcp", "it has none", 0, 2),
                                      Pair("else", "none", "--kv-security differs")}))),
      ElementsAre("prefill-0 -> decode-0: K/V over NCCL 2.23.4 (2 links), not encrypted, but 1 of "
                  "2 links TCP: no progress",
                  "prefill-0 -> decode-0: K/V over NCCL 2.23.4, not encrypted",
                  "prefill-0 -> decode-0: K/V over nothing yet, then over NCCL 2.23.4, not "
                  "encrypted",
                  "prefill-0 -> decode-1: K/V over TCP (2 links), authenticated by HMAC, not "
                  "encrypted: it has none",
                  "prefill-0 -> else:1: K/V over none: --kv-security differs"));
}

TEST(KvPairsTest, TlsIsNamedAndThatNcclIsNotUnderIt) {
  json tcp = Pair("decode-1", "tcp", "a CPU");
  json nccl = Pair("decode-0", "nccl", "", 1);
  tcp["security"] = nccl["security"] = "tls";
  EXPECT_THAT(KvPairLines(Status(json::array({tcp, nccl}))),
              ElementsAre("prefill-0 -> decode-1: K/V over TCP, TLS: a CPU",
                          "prefill-0 -> decode-0: K/V over NCCL 2.23.4, not encrypted, unlike what "
                          "goes over TCP here"));
}

TEST(KvPairsTest, WorkersThatShouldPairAndDoNotAreAProblemWithItsCure) {
  const auto findings =
      ExamineKvPairs(Status(json::array({Pair("decode-0", "none", "give both the same")})));
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].fact, "prefill-0 -> decode-0: K/V over nothing: they do not pair");
  EXPECT_EQ(findings[1].cure, "give both the same");
}

TEST(KvPairsTest, DifferentVersionsAreAProblem) {
  json status = Status(json::array({Pair("decode-0", "nccl", "", 1)}));
  EXPECT_EQ(ExamineKvPairs(status)[0].fact, "2.23.4 in prefill-0, decode-0");
  EXPECT_EQ(ExamineKvPairs(status)[0].cure, "");
  status["workers"][1]["nccl"] = "2.21.5";
  EXPECT_EQ(ExamineKvPairs(status)[0].fact, "2.21.5 in decode-0; 2.23.4 in prefill-0");
  EXPECT_NE(ExamineKvPairs(status)[0].cure, "");
  EXPECT_EQ(ExamineKvPairs(status)[1].cure, "");
}

TEST(KvPairsTest, HowManyAreNotShownIsSaid) {
  json status = Status(json::array());
  status["kv_pairs_left_out"] = 7;
  EXPECT_THAT(KvPairLines(status), ElementsAre("K/V of 7 more pairs is not shown"));
}

// Whatever a router of another release says.
TEST(KvPairsTest, OfWhatIsNoListNothingIsSaid) {
  for (const json& status : {json::object(), json{{"kv_pairs", "x"}, {"workers", 3}},
                             json{{"kv_pairs", {1, "x"}}, {"workers", {1}}}}) {
    EXPECT_THAT(KvPairLines(status), IsEmpty());
    EXPECT_THAT(ExamineKvPairs(status), IsEmpty());
  }
}

}  // namespace
}  // namespace baton::cli
