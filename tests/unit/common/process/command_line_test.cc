#include "common/process/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStderr;
using ::testing::internal::GetCapturedStdout;

std::optional<int> Parse(CLI::App& app, std::vector<std::string> words) {
  words.insert(words.begin(), "baton-test");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return ParseCommandLine(app, static_cast<int>(argv.size()), argv.data());
}

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() : app_("A test.", "baton-test") {
    app_.add_option("--threads", threads_, "Threads")->group("Memory")->capture_default_str();
    app_.add_option("--port", port_, "Port");
  }
  CLI::App app_;
  int threads_ = 4;
  int port_ = 0;
};

TEST_F(CommandLineTest, ReadsValuesAndGoesOn) {
  EXPECT_EQ(Parse(app_, {"--threads", "7", "--port=9"}), std::nullopt);
  EXPECT_EQ(threads_, 7);
  EXPECT_EQ(port_, 9);
}

TEST_F(CommandLineTest, HelpShowsGroupsAndDefaultsAndExitsWithZero) {
  CaptureStdout();
  EXPECT_EQ(Parse(app_, {"--help"}), 0);
  const std::string help = GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("Memory:"));
  EXPECT_THAT(help, HasSubstr("--threads INT=4"));
}

TEST_F(CommandLineTest, AWrongOptionIsOneLineThatSuggestsTheNearest) {
  CaptureStderr();
  EXPECT_EQ(Parse(app_, {"--treads", "2"}), 2);
  const std::string error = GetCapturedStderr();
  EXPECT_EQ(error, "baton-test: unknown option --treads (did you mean --threads?)\n");
}

TEST_F(CommandLineTest, AnOptionLikeNoOtherPointsToHelp) {
  CaptureStderr();
  EXPECT_EQ(Parse(app_, {"--xylophone"}), 2);
  EXPECT_EQ(GetCapturedStderr(),
            "baton-test: unknown option --xylophone; --help lists the options\n");
}

TEST_F(CommandLineTest, AWrongValueNamesTheOptionAndTheValue) {
  CaptureStderr();
  EXPECT_EQ(Parse(app_, {"--threads", "many"}), 2);
  const std::string error = GetCapturedStderr();
  EXPECT_THAT(error, HasSubstr("--threads"));
  EXPECT_THAT(error, HasSubstr("many"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1);
}

TEST(NearestNameTest, FindsTypingErrorsOnly) {
  const std::vector<std::string> names = {"--model", "--port", "--host"};
  EXPECT_EQ(NearestName("--modle", names), "--model");
  EXPECT_EQ(NearestName("--prot", names), "--port");
  EXPECT_EQ(NearestName("--something-else", names), "");
}

TEST(CheckHostTest, TakesLoopbackAndRefusesTheRestWithoutTls) {
  for (const bool has_tls : {false, true}) {
    EXPECT_TRUE(CheckHost("127.0.0.1", has_tls).ok());
    EXPECT_TRUE(CheckHost("localhost", has_tls).ok());
    EXPECT_FALSE(CheckHost("127.0.0.1.example.com", has_tls).ok());
    EXPECT_FALSE(CheckHost("", has_tls).ok());
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1"}) {
    const absl::Status status = CheckHost(host, false);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--tls-dir"));
    EXPECT_TRUE(CheckHost(host, true).ok());
  }
}

TEST(CheckAddressTest, TakesHostAndPortOnly) {
  for (const char* good : {"127.0.0.1:1", "h:65535", "[::1]:80"}) {
    EXPECT_TRUE(CheckAddress("--prefill", good).ok()) << good;
  }
  for (const char* bad : {"", "h", "h:", ":80", "h:0", "h:65536", "h:-1", "h:x", "h:8 0"}) {
    const absl::Status status = CheckAddress("--prefill", bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("--prefill ") + bad));
  }
}

TEST(CheckOptionTest, TakesBothEndsOfItsRange) {
  for (const int value : {2, 5}) EXPECT_TRUE(CheckOption("--n", value, 2, 5).ok());
  for (const int value : {1, 6}) {
    EXPECT_THAT(std::string(CheckOption("--n", value, 2, 5).message()),
                HasSubstr("must be 2 to 5"));
  }
}

TEST_F(CommandLineTest, TheVersionIsPrintedAndExitsWithZero) {
  CaptureStdout();
  EXPECT_EQ(Parse(app_, {"--version"}), 0);
  EXPECT_EQ(GetCapturedStdout(), std::string(kVersion) + "\n");
}

TEST(FailToStartTest, IsOneLineAndExitCodeTwo) {
  CaptureStderr();
  EXPECT_EQ(FailToStart("baton-test", absl::NotFoundError("--model x: a\nb")), 2);
  EXPECT_EQ(GetCapturedStderr(), "baton-test: --model x: a b\n");
}

}  // namespace
}  // namespace baton
