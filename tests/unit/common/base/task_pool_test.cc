#include "common/base/task_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

TEST(TaskPoolTest, RunsTasksInOrderOnThreadsOfItsNameAndNiceness) {
  const int own = getpriority(PRIO_PROCESS, 0);
  std::vector<int> order;
  std::promise<void> done;
  std::string name(16, 0);
  int nice = -1;
  TaskPool pool({.name = "pool-of-test", .nice = 3});
  for (int i = 0; i < 5; ++i) pool.Post("a", [&order, i] { order.push_back(i); });
  pool.Post("a", [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    nice = getpriority(PRIO_PROCESS, 0);
    done.set_value();
  });
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_STREQ(name.c_str(), "pool-of-test");
  EXPECT_EQ(nice, std::min(19, own + 3));
}

TEST(TaskPoolTest, ATaskThatTakesLongHasAThreadAndOthersTheOther) {
  std::promise<void> release, other;
  TaskPool pool({.name = "pool-of-test", .num_threads = 2});
  pool.Post("a", [&] { release.get_future().wait(); });
  pool.Post("a", [&] { other.set_value(); });
  other.get_future().wait();
  release.set_value();
}

TEST(TaskPoolTest, OwnersTakeTurnsWhateverTheyHavePosted) {
  std::promise<void> began, release, done;
  std::string order;
  TaskPool pool({.name = "pool-of-test"});
  pool.Post("a", [&] {
    began.set_value();
    release.get_future().wait();
  });
  began.get_future().wait();
  for (const char* owner : {"a", "a", "a", "a", "b", "c", "c"}) {
    pool.Post(owner, [&order, owner] { order += owner; });
  }
  pool.Post("a", [&] { done.set_value(); });
  release.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, "abcacaa");
}

TEST(TaskPoolTest, StopWaitsForWhatRunsAndDropsWhatWaits) {
  std::promise<void> began, release;
  bool has_ended = false;
  const auto held = std::make_shared<int>();
  TaskPool pool({.name = "pool-of-test"});
  pool.Post("a", [&] {
    began.set_value();
    release.get_future().wait();
    has_ended = true;
  });
  pool.Post("a", [held] { ADD_FAILURE() << "was dropped"; });
  began.get_future().wait();
  std::jthread stopping([&] { pool.Stop(); });
  while (held.use_count() > 1) {
  }
  release.set_value();
  stopping.join();
  EXPECT_TRUE(has_ended);
  pool.Post("a", [held] { ADD_FAILURE() << "came too late"; });
  EXPECT_EQ(held.use_count(), 1);
  pool.Stop();
}

}  // namespace
}  // namespace baton
