#include "common/base/this_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <thread>

namespace baton {
namespace {

TEST(ThisThreadTest, HasTheNameThatItWasGivenAndNoOtherHas) {
  std::string name(16, 0);
  std::jthread([&] {
    NameThisThread("compute-of-test");
    pthread_getname_np(pthread_self(), name.data(), name.size());
  }).join();
  EXPECT_STREQ(name.c_str(), "compute-of-test");
  pthread_getname_np(pthread_self(), name.data(), name.size());
  EXPECT_STRNE(name.c_str(), "compute-of-test");
  EXPECT_DEATH(NameThisThread("one character too many"), "check failed");
}

TEST(ThisThreadTest, NewThreadsHaveTheNameThatIsLentAndTheirMakerItsOwnAgain) {
  const auto name = [] {
    std::string own(16, 0);
    pthread_getname_np(pthread_self(), own.data(), own.size());
    return std::string(own.c_str());
  };
  const std::string before = name();
  std::string made;
  {
    const NameNewThreads named("library");
    std::jthread([&] { made = name(); }).join();
  }
  EXPECT_EQ(made, "library");
  EXPECT_EQ(name(), before);
}

TEST(ThisThreadTest, LowersTheCallingThreadAndNoOther) {
  const int mine = getpriority(PRIO_PROCESS, 0);
  int other = 0;
  std::jthread([&] {
    LowerThisThread(3);
    other = getpriority(PRIO_PROCESS, 0);
  }).join();
  EXPECT_EQ(other, std::min(19, mine + 3));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), mine);
}

TEST(ThisThreadTest, StopsAtTheLowestPriority) {
  std::jthread([] {
    LowerThisThread(19);
    LowerThisThread(19);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 19);
  }).join();
}

}  // namespace
}  // namespace baton
