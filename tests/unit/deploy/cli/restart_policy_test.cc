#include "deploy/cli/restart_policy.h"

#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RestartPolicyTest : public testing::Test {
 protected:
  Duration RunAndEnd(Duration run, bool cleanly) {
    policy_.OnReady(now_);
    now_ += run;
    return policy_.OnEnded(cleanly, now_);
  }

  Time now_{seconds(1000)};
  RestartPolicy policy_;
};

TEST_F(RestartPolicyTest, DelayDoublesWithEachCrashInARow) {
  for (int delay_ms : {200, 400, 800, 1600}) {
    EXPECT_EQ(RunAndEnd(seconds(1), /*cleanly=*/false), Duration(milliseconds(delay_ms)));
  }
}

TEST_F(RestartPolicyTest, DelayStopsAtThirtySecondsAndNoCrashIsTheLast) {
  for (int delay_ms : {200, 400, 800, 1600, 3200, 6400, 12800, 25600}) {
    EXPECT_EQ(RunAndEnd(seconds(29), /*cleanly=*/false), Duration(milliseconds(delay_ms)));
  }
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(RunAndEnd(seconds(29), /*cleanly=*/false), Duration(seconds(30)));
  }
  EXPECT_EQ(policy_.crashes(), 1008);
}

TEST_F(RestartPolicyTest, CrashAfterThirtySecondsOfServiceBeginsANewRow) {
  for (int i = 0; i < 4; ++i) RunAndEnd(seconds(1), /*cleanly=*/false);
  EXPECT_EQ(RunAndEnd(seconds(30), /*cleanly=*/false), Duration(milliseconds(200)));
  EXPECT_EQ(policy_.crashes(), 1);
}

TEST_F(RestartPolicyTest, TimeSpentLoadingIsNoService) {
  RunAndEnd(seconds(1), /*cleanly=*/false);
  for (int delay_ms : {400, 800, 1600}) {
    now_ += seconds(100);
    EXPECT_EQ(policy_.OnEnded(/*cleanly=*/false, now_), Duration(milliseconds(delay_ms)));
  }
}

TEST_F(RestartPolicyTest, CleanEndIsNoCrashAndBeginsANewRow) {
  for (int i = 0; i < 4; ++i) RunAndEnd(seconds(1), /*cleanly=*/false);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(RunAndEnd(seconds(1), /*cleanly=*/true), Duration(milliseconds(200)));
  }
  EXPECT_EQ(policy_.crashes(), 0);
}

}  // namespace
}  // namespace baton::cli
