#include "common/base/thread_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

namespace baton {
namespace {

TEST(ThreadPriorityTest, LowersTheCallingThreadAndNoOther) {
  const int mine = getpriority(PRIO_PROCESS, 0);
  int other = 0;
  std::jthread([&] {
    LowerThreadPriority(3);
    other = getpriority(PRIO_PROCESS, 0);
  }).join();
  EXPECT_EQ(other, std::min(19, mine + 3));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), mine);
}

TEST(ThreadPriorityTest, StopsAtTheLowestPriority) {
  std::jthread([] {
    LowerThreadPriority(19);
    LowerThreadPriority(19);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 19);
  }).join();
}

}  // namespace
}  // namespace baton
