#include "common/process/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

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

}  // namespace
}  // namespace baton
