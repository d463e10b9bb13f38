#include "common/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace baton {
namespace {

TEST(ThreadPoolTest, RunsEachTaskOnceWhateverTheNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> runs(tasks);
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        EXPECT_LT(thread, threads);
        runs[task].fetch_add(1);
      });
      for (const auto& r : runs) EXPECT_EQ(r.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, CallerSeesWhatTasksWroteInEveryOfManyCalls) {
  ThreadPool pool(3);
  std::vector<int64_t> values(17);
  for (int64_t round = 1; round <= 3000; ++round) {
    pool.ParallelFor(17, [&](int64_t task, int) { values[task] += task * round; });
    if (round % 1000 != 0) continue;
    for (int64_t i = 0; i < 17; ++i) ASSERT_EQ(values[i], i * round * (round + 1) / 2);
  }
}

TEST(ThreadPoolTest, NoTwoTasksOfOneThreadOverlap) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> overlaps{0};
  pool.ParallelFor(500, [&](int64_t, int thread) {
    if (inside[thread].fetch_add(1) != 0) ++overlaps;
    inside[thread].fetch_sub(1);
  });
  EXPECT_EQ(overlaps.load(), 0);
}

}  // namespace
}  // namespace baton
