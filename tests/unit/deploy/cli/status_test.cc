#include "deploy/cli/status.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using nlohmann::json;

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
               "running": 1, "waiting": 0, "more": "is left out"}],
  "router": {"queued_requests": 4}})";

TEST(StatusTest, JoinsByAddress) {
  const json status = JoinStatus(State(), json::parse(kRouterSays));
  ASSERT_EQ(status["workers"].size(), 1u);
  EXPECT_EQ(status["workers"][0],
            json({{"role", "decode"},
                  {"pid", getpid()},
                  {"address", "127.0.0.1:7"},
                  {"incarnation", "5"},
                  {"healthy", true},
                  {"blocks", json::parse(kRouterSays)["workers"][0]["blocks"]},
                  {"running", 1},
                  {"waiting", 0},
                  {"metrics_url", "http://127.0.0.1:9/metrics"}}));
  EXPECT_EQ(status["router"]["queued_requests"], 4);
  EXPECT_EQ(status["router"]["healthy"], true);
}

TEST(StatusTest, WithoutTheRoutersWordNothingIsHealthy) {
  const json status = JoinStatus(State(), json());
  EXPECT_EQ(status["workers"][0]["healthy"], false);
  EXPECT_EQ(status["workers"][0]["blocks"]["free"], 0);
  EXPECT_EQ(status["router"]["healthy"], false);
}

TEST(StatusTest, DeadProcessIsNotHealthyWhateverTheRouterSays) {
  RunState state = State();
  ++state.servers[0].process.start_ticks;
  EXPECT_EQ(JoinStatus(state, json::parse(kRouterSays))["workers"][0]["healthy"], false);
}

TEST(StatusTest, TableShowsEveryWorkerAndItsBlocks) {
  const std::string table = StatusTable(JoinStatus(State(), json::parse(kRouterSays)));
  EXPECT_THAT(table, testing::HasSubstr("3/2/0/0/1/0"));
  EXPECT_THAT(table, testing::HasSubstr("queued_requests 4"));
}

}  // namespace
}  // namespace baton::cli
