#include "common/telemetry/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LogTest, WritesOneLineOfEventAndFields) {
  EXPECT_EQ(FormatLogLine("listening", {{"address", "127.0.0.1:80"},
                                        {"workers", 3},
                                        {"ratio", 0.5},
                                        {"ready", true},
                                        {"status", absl::NotFoundError("no")}}),
            "listening address=127.0.0.1:80 workers=3 ratio=0.5 ready=true "
            "status=\"NOT_FOUND: no\"");
}

TEST(LogTest, AValueCanNeitherEndTheLineNorForgeAField) {
  const std::string line = FormatLogLine("event", {{"reason", "a\nb c=\"d\" \x1b[0m"}});
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_THAT(line, Not(HasSubstr("\x1b")));
  EXPECT_EQ(line, "event reason=\"a\\nb c=\\\"d\\\" \\x1b[0m\"");
}

TEST(LogTest, EachByteThatCouldMisleadIsQuoted) {
  for (const std::string value : {"", "a b", "a=b", "a\"b", "a\\b", "a\tb", "a\x7f", "\xC3\xA9"}) {
    EXPECT_THAT(FormatLogLine("event", {{"k", value}}), HasSubstr("k=\"")) << value;
  }
  EXPECT_EQ(FormatLogLine("event", {{"k", "plain/1.2:3"}}), "event k=plain/1.2:3");
}

// Standard error of this process while it lives, which nobody reads unless the test does.
class StderrPipe {
 public:
  StderrPipe() : own_(dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    read_ = ends[0];
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  ~StderrPipe() {
    dup2(own_, STDERR_FILENO);
    close(own_);
    close(read_);
  }
  // The next line, without its time.
  std::string ReadLine() {
    size_t end = 0;
    while ((end = text_.find('\n')) == std::string::npos) {
      char bytes[4096];
      const ssize_t got = read(read_, bytes, sizeof(bytes));
      if (got <= 0) return "nothing";
      text_.append(bytes, static_cast<size_t>(got));
    }
    const std::string line = text_.substr(text_.find(' ') + 1, end - text_.find(' ') - 1);
    text_.erase(0, end + 1);
    return line;
  }

 private:
  const int own_;
  int read_ = -1;
  std::string text_;
};

TEST(LogThreadTest, NobodyWaitsForALogThatIsNotReadAndItSaysWhatIsMissing) {
  constexpr int kLines = 6000;  // More than a pipe and those that wait have room for.
  const std::string text(100, 'x');
  StderrPipe pipe;
  const LogThread thread;
  for (int i = 0; i < kLines; ++i) Log(LogLevel::kInfo, "line", {{"i", i}, {"text", text}});
  int num_read = 0;
  std::string line = pipe.ReadLine();
  for (; line.find(" missing") == std::string::npos; line = pipe.ReadLine()) {
    ASSERT_TRUE(line.starts_with("info line i=") && line.ends_with(" text=" + text)) << line;
    ++num_read;
  }
  EXPECT_GE(num_read, 4096);
  EXPECT_EQ(line, "warning the log was not read: lines are missing lines=" +
                      std::to_string(kLines - num_read));
  Log(LogLevel::kInfo, "goes on");
  EXPECT_EQ(pipe.ReadLine(), "info goes on");
}

TEST(LogThreadTest, WritesAllBeforeItEndsAndLogWritesByItselfThen) {
  StderrPipe pipe;
  {
    const LogThread thread;
    for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, "line");
    FlushLog();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(pipe.ReadLine(), "info line");
    Log(LogLevel::kInfo, "last");
  }
  Log(LogLevel::kInfo, "after");
  EXPECT_EQ(pipe.ReadLine(), "info last");
  EXPECT_EQ(pipe.ReadLine(), "info after");
}

TEST(LogThreadTest, AProcessThatEndsWaitsForAnUnreadLogForAMomentOnly) {
  StderrPipe pipe;
  const LogThread thread;
  const std::string text(1000, 'x');
  for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, text);  // More than a pipe takes.
  const Time start = SteadyNow();
  FlushLog();
  EXPECT_LT(SteadyNow() - start, std::chrono::seconds(60));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pipe.ReadLine(), "info " + text);
}

TEST(LogThreadTest, ProducersThatAreManyLeaveNoLineUncounted) {
  constexpr int kThreads = 4;
  constexpr int kLines = 30000;
  StderrPipe pipe;
  const LogThread thread;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    const auto id = static_cast<id_t>(std::stoi(task.path().filename()));
    if (name == "log") setpriority(PRIO_PROCESS, id, 19);  // So that it is often interrupted.
  }
  int num_told = 0;
  std::atomic<bool> has_ended = false;
  std::jthread reader([&] {
    constexpr std::string_view kMissing =
        "warning the log was not read: lines are missing lines=";
    for (std::string line; (line = pipe.ReadLine()) != "info end";) {
      num_told += line.starts_with(kMissing) ? std::stoi(line.substr(kMissing.size())) : 1;
    }
    has_ended = true;
  });
  std::vector<std::jthread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([] {
      for (int i = 0; i < kLines; ++i) Log(LogLevel::kInfo, "line");
    });
  }
  for (std::jthread& one : producers) one.join();
  while (!has_ended) {
    FlushLog();
    Log(LogLevel::kInfo, "end");
  }
  reader.join();
  EXPECT_GE(num_told, kThreads * kLines);
}

TEST(LogThreadDeathTest, AFailedCheckLeavesTheLinesBeforeIt) {
  EXPECT_DEATH(
      {
        const LogThread thread;
        for (int i = 1; i <= 2000; ++i) Log(LogLevel::kInfo, "line", {{"i", i}});
        BATON_CHECK(getpid() == 0);
      },
      "line i=2000\n");
}

TEST(LogTest, WritesNothingBelowItsLevel) {
  ::testing::internal::CaptureStderr();
  SetLogLevel(LogLevel::kWarning);
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kWarning, "loud", {{"n", 1}});
  SetLogLevel(LogLevel::kInfo);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
  EXPECT_THAT(text, HasSubstr(" warning loud n=1\n"));
}

TEST(LogTest, EachLevelShowsItselfAndWhatIsWorse) {
  constexpr LogLevel kLevels[] = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                                  LogLevel::kError};
  for (const LogLevel lowest : kLevels) {
    ::testing::internal::CaptureStderr();
    SetLogLevel(lowest);
    for (const LogLevel level : kLevels) Log(level, "line");
    SetLogLevel(LogLevel::kInfo);
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4 - static_cast<int>(lowest));
  }
}

TEST(LogTest, KnowsItsLevelsByName) {
  LogLevel level = LogLevel::kInfo;
  EXPECT_TRUE(ParseLogLevel("error", &level));
  EXPECT_EQ(level, LogLevel::kError);
  EXPECT_FALSE(ParseLogLevel("loud", &level));
  EXPECT_EQ(level, LogLevel::kError);
}

}  // namespace
}  // namespace baton
