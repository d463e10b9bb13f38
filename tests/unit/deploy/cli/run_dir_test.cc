#include "deploy/cli/run_dir.h"

#include <signal.h>
#include <sys/wait.h>
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
  router.data_addresses = {"127.0.0.1:3", "127.0.0.1:5"};
  router.metrics_url = "http://127.0.0.1:4";
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
  EXPECT_TRUE(loaded->ready && loaded->restarts);
  EXPECT_EQ(loaded->model, "/m");
  const ServerRecord& router = *loaded->Router();
  EXPECT_EQ(router.name, "router");
  EXPECT_EQ(router.process, (ProcessIdentity{.pid = 1, .start_ticks = 2, .boot_id = "b"}));
  EXPECT_EQ(router.address, "127.0.0.1:1");
  EXPECT_EQ(router.data_addresses, (std::vector<std::string>{"127.0.0.1:3", "127.0.0.1:5"}));
  EXPECT_EQ(router.metrics_url, "http://127.0.0.1:4");
  EXPECT_EQ(router.incarnation, 18446744073709551615u);
  EXPECT_EQ(router.exited, "exit code 1");
  EXPECT_TRUE(router.given_up);
  EXPECT_EQ(router.restarts, 7);
  EXPECT_EQ(router.crashes, 2);
  EXPECT_EQ(router.last_exit, "exit code 2");
  EXPECT_EQ(router.start_at, Time(std::chrono::nanoseconds(5)));
  EXPECT_EQ(loaded->servers[1].start_at, kNever);
}

TEST_F(RunDirTest, ANewStateTakesThePlaceOfTheOld) {
  ASSERT_TRUE(dir_.Save(StateOfThisProcess()).ok());
  std::ifstream reader(dir_.path() + "/state.json");
  RunState next = StateOfThisProcess();
  next.model = "/next";
  ASSERT_TRUE(dir_.Save(next).ok());
  EXPECT_EQ(nlohmann::json::parse(reader)["model"], "/m");  // Whole, whenever it is read.
  EXPECT_EQ(dir_.Load()->model, "/next");
}

TEST_F(RunDirTest, AProcessThatHasEndedButWasNotAwaitedDoesNotRun) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(IdentifyProcess(pid).ok());
  waitpid(pid, nullptr, 0);
  EXPECT_FALSE(IsRunning({}));
}

TEST_F(RunDirTest, ASignalReachesTheProcessThatIsMeantAndNoOtherOfItsNumber) {
  const pid_t pid = fork();
  if (pid == 0) {
    pause();
    _exit(0);
  }
  ProcessIdentity other = *IdentifyProcess(pid);
  ++other.start_ticks;
  EXPECT_TRUE(SignalAndWait(other, SIGKILL, 1000));  // That one is gone.
  EXPECT_TRUE(IdentifyProcess(pid).ok());
  EXPECT_FALSE(SignalAndWait(*IdentifyProcess(pid), 0, 50));  // It goes on.
  EXPECT_TRUE(SignalAndWait(*IdentifyProcess(pid), SIGKILL, 10'000));
  waitpid(pid, nullptr, 0);
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
