#include "deploy/cli/restart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

RunState ClusterState() {
  RunState state;
  for (const char* name : {"prefill-0", "prefill-1", "decode-0", "decode-1", "router"}) {
    const std::string text = name;
    ServerRecord& server = state.servers.emplace_back();
    server.name = text;
    server.role = text.substr(0, text.find('-'));
  }
  return state;
}

TEST(RestartTest, AllWorkersAndNeverTheRouter) {
  EXPECT_THAT(*WorkersToRestart(ClusterState(), {}),
              ElementsAre("prefill-0", "prefill-1", "decode-0", "decode-1"));
}

TEST(RestartTest, RoleAndIndexNarrowTheChoice) {
  EXPECT_THAT(*WorkersToRestart(ClusterState(), {.role = "decode"}),
              ElementsAre("decode-0", "decode-1"));
  EXPECT_THAT(*WorkersToRestart(ClusterState(), {.role = "decode", .index = 1}),
              ElementsAre("decode-1"));
}

TEST(RestartTest, WorkerThatIsNotThereIsNamed) {
  const auto names = WorkersToRestart(ClusterState(), {.role = "decode", .index = 2});
  ASSERT_FALSE(names.ok());
  EXPECT_THAT(std::string(names.status().message()), HasSubstr("decode-2"));
}

TEST(RestartTest, OnlyTheNewProcessIsHealthyAtTheRouter) {
  ServerRecord worker;
  worker.address = "h:1";
  const auto says = [](const char* address, const char* incarnation, bool healthy) -> json {
    return {
        {"workers", {{{"address", address}, {"incarnation", incarnation}, {"healthy", healthy}}}}};
  };
  EXPECT_FALSE(IsHealthyAtRouter(worker, says("h:1", "new", true))) << "it still loads";
  worker.incarnation = "new";
  EXPECT_TRUE(IsHealthyAtRouter(worker, says("h:1", "new", true)));
  EXPECT_FALSE(IsHealthyAtRouter(worker, says("h:1", "old", true)));
  EXPECT_FALSE(IsHealthyAtRouter(worker, says("h:1", "new", false)));
  EXPECT_FALSE(IsHealthyAtRouter(worker, says("h:2", "new", true)));
  for (const json& other : {json(), json::array(), json{{"workers", 7}}, json{{"workers", {7}}}}) {
    EXPECT_FALSE(IsHealthyAtRouter(worker, other)) << other;
  }
}

}  // namespace
}  // namespace baton::cli
