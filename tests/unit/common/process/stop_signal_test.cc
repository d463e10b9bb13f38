#include "common/process/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

namespace baton {
namespace {

TEST(StopSignalTest, WaitReturnsForASignalThatCameBeforeAndNoticesAnother) {
  StopSignal stop;
  EXPECT_FALSE(stop.CameAgain());
  ASSERT_EQ(kill(getpid(), SIGTERM), 0);
  stop.Wait();
  EXPECT_FALSE(stop.CameAgain());
  ASSERT_EQ(kill(getpid(), SIGINT), 0);
  EXPECT_TRUE(stop.CameAgain());
  EXPECT_FALSE(stop.CameAgain());
}

TEST(StopSignalTest, WhoWaitsDoesSomethingElseUntilItHasCome) {
  StopSignal stop;
  int times = 0;
  stop.Wait(std::chrono::milliseconds(1), [&times] {
    if (++times == 3) kill(getpid(), SIGTERM);
  });
  EXPECT_EQ(times, 3);
  EXPECT_FALSE(stop.CameAgain());
}

TEST(StopSignalTest, APeerThatHangsUpEndsNoProcess) {
  EXPECT_EXIT(
      {
        std::signal(SIGPIPE, SIG_DFL);
        StopSignal stop;
        std::raise(SIGPIPE);
        std::_Exit(stop.CameAgain() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace baton
