#include "deploy/cli/kv_paths.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

json Link(int rank, const std::string& peer, bool sends, const std::string& why) {
  return {{"rank", rank},   {"peer", peer},
          {"sends", sends}, {"transport", why.empty() ? "nccl" : "tcp"},
          {"why", why}};
}

json Page(const std::string& version, json links, const std::string& why = "") {
  return {{"nccl", version}, {"why", why}, {"links", std::move(links)}};
}

// One prefill worker of two ranks and two decode workers.
RunState State() {
  RunState state;
  state.servers = {{.name = "prefill-0", .role = "prefill", .incarnation = "000000000000000a"},
                   {.name = "decode-0", .role = "decode", .incarnation = 11u},
                   {.name = "decode-1", .role = "decode", .incarnation = "000000000000000c"}};
  return state;
}

json Paths() {
  return JoinKvPaths(
      State(),
      {{"prefill-0", Page("2.23.4", {Link(0, "000000000000000b rank 0", true, ""),
                                     Link(1, "000000000000000b rank 0", true, "no progress"),
                                     Link(0, "000000000000000c rank 0", true, "it has none"),
                                     Link(1, "000000000000000c rank 0", true, "it has none"),
                                     Link(1, "00000000000000ff rank 0", true, "")})},
       {"decode-0", Page("2.23.4", {Link(0, "000000000000000a rank 0", false, ""),
                                    Link(0, "000000000000000a rank 1", false, "no progress")})},
       {"decode-1", Page("", json::array(), "no library")}});
}

TEST(KvPathsTest, PeersHaveTheirNamesAndThoseOfOtherLivesAreLeftOut) {
  const json paths = Paths();
  ASSERT_EQ(paths["prefill-0"]["links"].size(), 4u);
  EXPECT_EQ(paths["prefill-0"]["links"][1]["peer"], "decode-0 rank 0");
  EXPECT_EQ(paths["decode-0"]["links"][1]["peer"], "prefill-0 rank 1");
  EXPECT_EQ(paths["decode-0"]["nccl"], "2.23.4");
}

TEST(KvPathsTest, EachPairSaysWhatCarriesItsKvAndWhyNotNccl) {
  EXPECT_THAT(KvPathLines(Paths()),
              ElementsAre("prefill-0 -> decode-0: K/V over NCCL 2.23.4, but 1 of 2 links TCP: "
                          "no progress",
                          "prefill-0 -> decode-1: K/V over TCP (2 links): it has none",
                          "decode-1: no NCCL, K/V over TCP: no library"));
}

TEST(KvPathsTest, NcclBesideTlsIsSaidToBeInPlaintext) {
  json page = Page("2.23.4", {Link(0, "000000000000000b rank 0", true, "")});
  page["tls"] = true;
  EXPECT_THAT(KvPathLines(JoinKvPaths(State(), {{"prefill-0", page}})),
              ElementsAre("prefill-0 -> decode-0: K/V over NCCL 2.23.4, unlike TCP here not "
                          "encrypted"));
}

TEST(KvPathsTest, WhereNobodyHasNcclNothingIsSaid) {
  const json paths = JoinKvPaths(State(), {{"decode-1", Page("", json::array(), "a CPU")}});
  EXPECT_THAT(KvPathLines(paths), IsEmpty());
  EXPECT_THAT(ExamineKvPaths(paths), IsEmpty());
}

TEST(KvPathsTest, WhoAskedForNcclHearsWhyThereIsNone) {
  json page = Page("", json::array(), "no library");
  page["asked_for"] = true;
  EXPECT_THAT(KvPathLines(JoinKvPaths(State(), {{"decode-1", page}})),
              ElementsAre("decode-1: no NCCL, K/V over TCP: no library"));
}

TEST(KvPathsTest, DifferentVersionsAreAProblem) {
  json paths = Paths();
  EXPECT_EQ(ExamineKvPaths(paths)[0].fact, "2.23.4 in decode-0, prefill-0");
  EXPECT_EQ(ExamineKvPaths(paths)[0].cure, "");
  paths["decode-0"]["nccl"] = "2.21.5";
  EXPECT_EQ(ExamineKvPaths(paths)[0].fact, "2.21.5 in decode-0; 2.23.4 in prefill-0");
  EXPECT_NE(ExamineKvPaths(paths)[0].cure, "");
  EXPECT_EQ(ExamineKvPaths(paths).size(), 1 + KvPathLines(paths).size());
}

TEST(KvPathsTest, WorkersThatDoNotAnswerAreLeftOut) {
  RunState state = State();
  for (ServerRecord& server : state.servers) server.metrics_url = "http://127.0.0.1:1/metrics";
  EXPECT_EQ(AskKvPaths(state, {"prefill-0", "decode-0"}), json::object());
  EXPECT_EQ(JoinKvPaths(state, {{"decode-0", "no page"}})["decode-0"]["links"], json::array());
}

}  // namespace
}  // namespace baton::cli
