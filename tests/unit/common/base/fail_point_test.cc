#include "common/base/fail_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace baton {
namespace {

#ifdef BATON_FAIL_POINTS
class FailPointDeathTest : public ::testing::Test {
 protected:
  FailPointDeathTest() {
    // The environment is read once per process: each claim runs in a process of its own.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    log_ = ::testing::TempDir() + "fail_point_test." + test;
  }
  ~FailPointDeathTest() override { std::remove(log_.c_str()); }

  void Pass(const char* fault, int times) const {
    setenv("BATON_FAIL_LOG", log_.c_str(), 1);
    setenv("BATON_FAIL_POINT", fault, 1);
    for (int i = 0; i < times; ++i) {
      BATON_FAIL_POINT("test.other");
      BATON_FAIL_POINT("test.here");
    }
    std::_Exit(0);
  }

  std::string log_;
};

TEST_F(FailPointDeathTest, KillsTheProcessAtTheAskedPassAndSaysSoFirst) {
  EXPECT_EXIT(Pass("test.here:kill:3", 3), ::testing::KilledBySignal(SIGKILL), "");
  std::stringstream text;
  text << std::ifstream(log_).rdbuf();
  EXPECT_THAT(text.str(), ::testing::MatchesRegex("test.here kill [0-9]+\n"));
}

TEST_F(FailPointDeathTest, DoesNothingBeforeTheAskedPass) {
  EXPECT_EXIT(Pass("test.here:kill:3", 2), ::testing::ExitedWithCode(0), "");
}

TEST_F(FailPointDeathTest, TerminatesAsTheSignalWould) {
  EXPECT_EXIT(Pass("test.here:term:1", 1), ::testing::KilledBySignal(SIGTERM), "");
}

TEST_F(FailPointDeathTest, AThreadThatHangsGoesNoFurther) {
  const auto hang = [this] {
    alarm(1);
    Pass("test.here:hang:1", 1);
  };
  EXPECT_EXIT(hang(), ::testing::KilledBySignal(SIGALRM), "");
}

TEST_F(FailPointDeathTest, RefusesAnActionThatItDoesNotKnow) {
  EXPECT_EXIT(Pass("test.here:explode:1", 1), ::testing::ExitedWithCode(2), "explode");
}
#else
TEST(FailPointTest, CompilesToNothingInThisBuild) {
  int passes = 0;
  BATON_FAIL_POINT((++passes, "test.here"));
  EXPECT_EQ(passes, 0);
}
#endif

}  // namespace
}  // namespace baton
