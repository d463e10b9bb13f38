#include "common/telemetry/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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
