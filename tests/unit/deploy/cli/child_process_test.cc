#include "deploy/cli/child_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

class ChildProcessTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> Start(const std::string& script,
                                      const std::string& role = "decode") {
    auto child = ChildProcess::Start(
        {.name = "child", .role = role, .program = "/bin/sh", .arguments = {"-c", script}},
        std::make_unique<LogFile>(log_),
        [this](const std::string&, absl::string_view line) { lines_.emplace_back(line); });
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }

  // Reads until the pipe is at its end, then collects the exit status.
  static void Finish(ChildProcess& child) {
    while (child.Pump()) {
      pollfd output{.fd = child.output_fd(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&output, 1, 10'000), 1) << "no output and no end within 10 s";
    }
    for (int i = 0; child.running() && i < 1000; ++i) {
      child.Reap();
      poll(nullptr, 0, 10);
    }
    ASSERT_FALSE(child.running());
  }

  const std::string log_ = testing::TempDir() + "/child_process_test.log";
  std::vector<std::string> lines_;
};

// What the test below starts: a process whose own child traces it, and says so.
TEST(TracedProcessTest, DISABLED_IsTracedByItsChild) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (fork() == 0) {
    const bool traces = ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr) == 0;
    dprintf(STDOUT_FILENO, "tracer=%d\n", traces ? getpid() : 0);
    poll(nullptr, 0, 60'000);
    _exit(0);
  }
  poll(nullptr, 0, 60'000);
}

// A killed process that cannot end, as one in a hung driver: its parent hears of its end when its
// tracer has heard, which does not listen.
TEST_F(ChildProcessTest, AChildThatSigkillDoesNotEndIsLeft) {
  pid_t tracer = -1, child = -1;
  {
    auto made = ChildProcess::Start(
        {.name = "child",
         .role = "decode",
         .program = "/proc/self/exe",
         .arguments = {"--gtest_also_run_disabled_tests", "--gtest_filter=TracedProcessTest.*"}},
        std::make_unique<LogFile>(log_), [&](const std::string&, absl::string_view line) {
          if (absl::StartsWith(line, "tracer=")) tracer = std::stoi(std::string(line.substr(7)));
        });
    ASSERT_TRUE(made.ok()) << made.status();
    child = (*made)->identity().pid;
    for (int i = 0; tracer < 0 && i < 3000; ++i) {
      (*made)->Pump();
      poll(nullptr, 0, 10);
    }
    ASSERT_GE(tracer, 0) << "no word of the tracer";
  }
  if (tracer == 0) GTEST_SKIP() << "ptrace is not allowed here";
  EXPECT_EQ(kill(tracer, 0), 0);  // It was not waited for.
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);
  kill(tracer, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(ChildProcessTest, CollectsBothOutputsAndTheExitCode) {
  auto child = Start("echo one; echo two >&2; printf three; exit 3");
  Finish(*child);
  EXPECT_THAT(lines_, testing::ElementsAre("one", "two", "three"));
  EXPECT_EQ(child->how_it_ended(), "exit code 3");
  EXPECT_FALSE(child->ended_cleanly());
}

TEST_F(ChildProcessTest, NamesTheSignalThatKilled) {
  auto child = Start("kill -9 $$");
  Finish(*child);
  EXPECT_EQ(child->how_it_ended(), "killed by signal 9 (Killed)");
}

// The sixth field of /proc/PID/stat is the session, the fifth the process group.
TEST_F(ChildProcessTest, TheRouterHasASessionOfItsOwnAndWorkersShareTheSupervisors) {
  const std::string shown =
      "read -r pid name state parent group session rest < /proc/$$/stat; "
      "[ $group = $$ ] && echo $session $$";
  for (const std::string role : {"router", "prefill", "decode"}) {
    lines_.clear();
    auto child = Start(shown, role);
    const std::string pid = std::to_string(child->identity().pid);
    Finish(*child);
    const std::string session = role == "router" ? pid : std::to_string(getsid(0));
    EXPECT_THAT(lines_, testing::ElementsAre(session + " " + pid)) << role;
  }
}

TEST_F(ChildProcessTest, KeepsTheLastLinesOnly) {
  auto child = Start("for i in $(seq 1000); do echo line $i; done");
  Finish(*child);
  EXPECT_TRUE(child->ended_cleanly());
  EXPECT_EQ(lines_.size(), 1000u);
  ASSERT_EQ(child->last_lines().size(), 15u);
  EXPECT_EQ(child->last_lines().back(), "line 1000");
}

TEST_F(ChildProcessTest, EndlessLineIsCutAndDoesNotGrow) {
  auto child = Start("head -c 100000 /dev/zero | tr '\\0' x");
  Finish(*child);
  EXPECT_GT(lines_.size(), 1u);
  for (const std::string& line : lines_) EXPECT_LE(line.size(), 16u * 1024 + 8192);
}

TEST_F(ChildProcessTest, SignalsAreDefaultInTheChild) {
  signal(SIGPIPE, SIG_IGN);
  auto child = Start("kill -PIPE $$; echo survived");
  signal(SIGPIPE, SIG_DFL);
  Finish(*child);
  EXPECT_THAT(lines_, testing::IsEmpty());
}

TEST_F(ChildProcessTest, SignalsThatWereBlockedReachTheChild) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  auto child = Start("kill -TERM $$; echo survived");
  sigprocmask(SIG_SETMASK, &before, nullptr);
  Finish(*child);
  EXPECT_THAT(lines_, testing::IsEmpty());
}

TEST_F(ChildProcessTest, ReadsNothingOfWhatIsTyped) {
  int typed[2];
  ASSERT_EQ(pipe(typed), 0);
  const int before = dup(STDIN_FILENO);
  dup2(typed[0], STDIN_FILENO);
  ASSERT_EQ(write(typed[1], "typed\n", 6), 6);
  auto child = Start("read -r line; echo \"got $line\"");
  dup2(before, STDIN_FILENO);
  for (const int fd : {before, typed[0], typed[1]}) close(fd);
  Finish(*child);
  EXPECT_THAT(lines_, testing::ElementsAre("got "));
}

TEST_F(ChildProcessTest, OneThatNeverStopsWritingHoldsNobody) {
  auto child = Start("exec yes 0123456789");
  pollfd output{.fd = child->output_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&output, 1, 10'000), 1);
  for (int turn = 1; turn <= 20; ++turn) {
    EXPECT_TRUE(child->Pump());
    EXPECT_LE(lines_.size() * 11, turn * size_t{64} * 8192 + 11);
  }
}

TEST_F(ChildProcessTest, DestructionEndsTheProcess) {
  auto child = Start("exec sleep 60");
  const ProcessIdentity identity = child->identity();
  ASSERT_TRUE(IsRunning(identity));
  child.reset();
  EXPECT_FALSE(IsRunning(identity));
}

TEST_F(ChildProcessTest, MissingProgramIsNamedWithItsCure) {
  const auto child = ChildProcess::Start({.name = "x", .program = "/nowhere/baton-x"},
                                         std::make_unique<LogFile>(log_), {});
  ASSERT_FALSE(child.ok());
  EXPECT_THAT(std::string(child.status().message()), testing::HasSubstr("/nowhere/baton-x"));
  EXPECT_THAT(std::string(child.status().message()), testing::HasSubstr("build it with"));
}

TEST_F(ChildProcessTest, LogFileTurnsOverAtItsLimit) {
  LogFile log(log_, /*keep=*/false, /*max_bytes=*/100);
  for (int i = 0; i < 30; ++i) log.WriteLine("0123456789");
  EXPECT_LE(std::filesystem::file_size(log_), 111u + 11u);
  EXPECT_GT(std::filesystem::file_size(log_ + ".1"), 100u);
}

TEST_F(ChildProcessTest, KeptLogCountsWhatItHolds) {
  LogFile(log_).WriteLine(std::string(100, 'x'));
  LogFile log(log_, /*keep=*/true, /*max_bytes=*/100);
  log.WriteLine("of the next start");
  EXPECT_EQ(std::filesystem::file_size(log_ + ".1"), 101u);
}

}  // namespace
}  // namespace baton::cli
