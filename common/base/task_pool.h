#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace baton {

struct TaskPoolOptions {
  std::string name;     // Of the threads, see NameThisThread.
  int num_threads = 1;
  int nice = 0;         // See LowerThisThread.
};

// Threads for tasks that may take long. Each task goes to the first thread that is free, in the
// order in which they came. Thread-safe.
class TaskPool {
 public:
  explicit TaskPool(TaskPoolOptions options);
  ~TaskPool();  // Stops.

  // Dropped after Stop. A task must not throw.
  void Post(std::function<void()> task);

  // Waits for the tasks that run and drops those that wait. Idempotent; not from a task.
  void Stop();

 private:
  void Run();

  const TaskPoolOptions options_;
  // Standard ones, not Abseil's: the thread sanitizer sees through them.
  std::mutex mutex_;  // Guards the next two.
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace baton
