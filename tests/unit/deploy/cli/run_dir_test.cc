#include "deploy/cli/run_dir.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

class RunDirTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(dir_.path());
    ASSERT_TRUE(dir_.Create().ok());
  }
  const RunDir dir_{testing::TempDir() + "/run_dir_test"};
};

RunState StateOfThisProcess() {
  RunState state{
      .supervisor = *IdentifyProcess(getpid()), .ready = true, .restarts = true, .model = "/m"};
  ServerRecord& router = state.servers.emplace_back();
  router.name = "router";
  router.role = "router";
  router.process = {.pid = 1, .start_ticks = 2, .boot_id = "b"};
  router.address = "127.0.0.1:1";
  router.http_url = "http://127.0.0.1:2";
  router.incarnation = 18446744073709551615u;
  router.exited = "exit code 1";
  router.given_up = true;
  router.restarts = 7;
  router.crashes = 2;
  router.last_exit = "exit code 2";
  router.start_at = Time(std::chrono::nanoseconds(5));
  state.servers.emplace_back(router).start_at = kNever;
  return state;
}

TEST_F(RunDirTest, StateSurvivesTheRoundTrip) {
  ASSERT_TRUE(dir_.Save(StateOfThisProcess()).ok());
  const auto loaded = dir_.LoadRunning();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(ToJson(*loaded), ToJson(StateOfThisProcess()));
  ASSERT_NE(loaded->Router(), nullptr);
  EXPECT_EQ(loaded->Router()->http_url, "http://127.0.0.1:2");
}

TEST_F(RunDirTest, StateOfAnotherStartOfTheSamePidIsNotRunning) {
  RunState state = StateOfThisProcess();
  ++state.supervisor.start_ticks;
  ASSERT_TRUE(dir_.Save(state).ok());
  EXPECT_TRUE(dir_.Load().ok());
  EXPECT_EQ(dir_.LoadRunning().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RunDirTest, LockIsExclusiveUntilItIsClosed) {
  const auto lock = dir_.Lock();
  ASSERT_TRUE(lock.ok()) << lock.status();
  const auto second = dir_.Lock();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("baton down --dir"));
  close(*lock);
  const auto third = dir_.Lock();
  ASSERT_TRUE(third.ok());
  close(*third);
}

TEST_F(RunDirTest, DamagedStateIsAnErrorAndNotACrash) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"version": 2})", R"({"version": 1, "supervisor": {"pid": "x"}})",
        R"({"version": 1, "supervisor": {"pid": 1, "start_ticks": 1},
                               "servers": [7]})"}) {
    std::ofstream(dir_.path() + "/state.json") << text;
    EXPECT_EQ(dir_.Load().status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST_F(RunDirTest, NoStateSaysHowToStart) {
  const auto state = dir_.Load();
  EXPECT_EQ(state.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(state.status().message()), testing::HasSubstr("baton up --dir"));
}

TEST_F(RunDirTest, FolderThatCannotBeMadeIsNamed) {
  EXPECT_THAT(RunDir("/proc/nope").Create().ToString(), testing::HasSubstr("/proc/nope"));
}

}  // namespace
}  // namespace baton::cli
