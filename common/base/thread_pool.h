#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace baton {

// Threads that share the tasks of one call at a time. Which thread runs a task never matters to
// its result. Workers wait a few microseconds for the next call, then park.
class ThreadPool {
 public:
  // task in [0, num_tasks), thread in [0, num_threads).
  using Body = absl::FunctionRef<void(int64_t task, int thread)>;

  // The caller of ParallelFor is one of the `num_threads` >= 1. `nice` >= 0 is added to the
  // niceness of the others, so that another process on the same cores comes first; `name` is theirs
  // (NameThisThread).
  explicit ThreadPool(int num_threads, int nice = 0, const char* name = "compute-pool");
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body for each task and returns when all have ended; what they wrote is visible to the
  // caller. Not reentrant, one caller at a time.
  void ParallelFor(int64_t num_tasks, Body body);

 private:
  void WorkerLoop(int thread);
  bool Join();
  void RunTasks(int thread);

  // Set by the caller before it opens the gate, read by workers inside it.
  const Body* body_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<bool> stopping_{false};

  std::atomic<uint32_t> calls_{0};  // Counts calls; workers wait on it.
  std::atomic<int64_t> next_task_{0};
  // kOpen while workers may join the call in progress, and how many are in it. The caller closes it
  // when no task is left, so that it waits for no worker that the kernel has not let run yet.
  std::atomic<uint32_t> gate_{0};
  static constexpr uint32_t kOpen = uint32_t{1} << 31;
  std::vector<std::jthread> workers_;
};

}  // namespace baton
