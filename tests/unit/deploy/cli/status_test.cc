#include "deploy/cli/status.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr Time kNow{std::chrono::seconds(1000)};

RunState State() {
  const ProcessIdentity self = *IdentifyProcess(getpid());
  RunState state;
  state.servers = {{.name = "decode-0",
                    .role = "decode",
                    .process = self,
                    .address = "127.0.0.1:7",
                    .metrics_url = "http://127.0.0.1:9/metrics",
                    .incarnation = "5"},
                   {.name = "router", .role = "router", .process = self, .address = "127.0.0.1:8"}};
  return state;
}

const char kRouterSays[] = R"({
  "workers": [{"role": "decode", "address": "127.0.0.1:7", "incarnation": "5", "healthy": true,
               "blocks": {"free": 3, "cached": 2, "reserved": 0, "filling": 0, "ready": 1,
                          "draining": 0},
               "tp": 4, "running": 1, "waiting": 0, "kv_security": "tls", "nccl": "2.23.4",
               "why_no_nccl": "", "more": "is left out"}],
  "router": {"queued_requests": 4}})";

TEST(StatusTest, JoinsByAddress) {
  const json status = JoinStatus(State(), json::parse(kRouterSays), kNow);
  ASSERT_EQ(status["workers"].size(), 1u);
  EXPECT_EQ(status["workers"][0],
            json({{"name", "decode-0"},
                  {"role", "decode"},
                  {"pid", getpid()},
                  {"address", "127.0.0.1:7"},
                  {"incarnation", "5"},
                  {"healthy", true},
                  {"tp", 4},
                  {"blocks", json::parse(kRouterSays)["workers"][0]["blocks"]},
                  {"running", 1},
                  {"waiting", 0},
                  {"kv_security", "tls"},
                  {"nccl", "2.23.4"},
                  {"why_no_nccl", ""},
                  {"metrics_url", "http://127.0.0.1:9/metrics"},
                  {"restarts", 0},
                  {"last_exit", ""},
                  {"next_try_s", nullptr}}));
  EXPECT_EQ(status["router"]["queued_requests"], 4);
  EXPECT_EQ(status["router"]["healthy"], true);
}

TEST(StatusTest, WithoutTheRoutersWordNothingIsHealthy) {
  const json status = JoinStatus(State(), json(), kNow);
  EXPECT_EQ(status["workers"][0]["healthy"], false);
  EXPECT_EQ(status["workers"][0]["blocks"]["free"], 0);
  EXPECT_EQ(status["router"]["healthy"], false);
}

TEST(StatusTest, DeadProcessIsNotHealthyWhateverTheRouterSays) {
  RunState state = State();
  ++state.servers[0].process.start_ticks;
  EXPECT_EQ(JoinStatus(state, json::parse(kRouterSays), kNow)["workers"][0]["healthy"], false);
}

TEST(StatusTest, TableShowsEveryWorkerAndItsBlocks) {
  const std::string table = StatusTable(JoinStatus(State(), json::parse(kRouterSays), kNow));
  EXPECT_THAT(table, testing::HasSubstr("yes       4       1       0  3/2/0/0/1/0"));
  EXPECT_THAT(table, testing::HasSubstr("queued_requests 4"));
}

TEST(StatusTest, OfAClusterElsewhereTheRouterTellsAll) {
  json says = json::parse(kRouterSays);
  says["workers"].push_back({{"role", "prefill"},
                             {"address", "10.0.0.3:7000"},
                             {"healthy", false},
                             {"reason", "its certificate is of role decode"}});
  const json status = RemoteStatus("10.0.0.4:7000", says);
  EXPECT_EQ(status["workers"][0]["name"], "decode-0");
  EXPECT_EQ(status["workers"][0]["healthy"], true);
  EXPECT_EQ(status["workers"][0]["blocks"]["free"], 3);
  EXPECT_EQ(status["workers"][1]["name"], "prefill-0");
  EXPECT_EQ(status["workers"][1]["healthy"], false);
  EXPECT_EQ(status["router"]["healthy"], true);
  EXPECT_EQ(status["router"]["queued_requests"], 4);
  const std::string table = StatusTable(status);
  EXPECT_THAT(table, testing::HasSubstr("- 10.0.0.3:7000         NO"));
  EXPECT_THAT(table, testing::HasSubstr("\nprefill-0: its certificate is of role decode\n"));
  EXPECT_EQ(RemoteStatus("r:1", json::object())["workers"], json::array());
}

TEST(StatusTest, ShowsHowAServerEndedAndWhenItIsTriedAgain) {
  EXPECT_THAT(StatusTable(JoinStatus(State(), json(), kNow)),
              testing::Not(testing::HasSubstr("restarted")));
  RunState state = State();
  state.servers[0].restarts = 3;
  state.servers[0].last_exit = "killed by signal 9 (Killed)";
  state.servers[0].start_at = kNow + std::chrono::milliseconds(2500);
  state.servers[1].restarts = 1;
  state.servers[1].last_exit = "exit code 3";
  const json status = JoinStatus(state, json(), kNow);
  EXPECT_EQ(status["workers"][0]["restarts"], 3);
  EXPECT_EQ(status["workers"][0]["last_exit"], "killed by signal 9 (Killed)");
  EXPECT_EQ(status["workers"][0]["next_try_s"], 2.5);
  EXPECT_EQ(status["router"]["restarts"], 1);
  EXPECT_EQ(status["router"]["next_try_s"], nullptr);
  const std::string table = StatusTable(status);
  EXPECT_THAT(table,
              testing::HasSubstr("\ndecode-0: restarted 3 times, last end: killed by signal 9 "
                                 "(Killed); next try in 2.5 s\n"));
  EXPECT_THAT(table, testing::HasSubstr("\nrouter: restarted 1 times, last end: exit code 3\n"));
  const json late = JoinStatus(state, json(), kNow + std::chrono::seconds(9));
  EXPECT_EQ(late["workers"][0]["next_try_s"], 0);
}

}  // namespace
}  // namespace baton::cli
