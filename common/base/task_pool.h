#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
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

// Threads for tasks that may take long. Each goes to the first thread that is free. Tasks of one
// owner are run in the order in which they came; owners take turns, so that nobody waits behind all
// that another has posted. Thread-safe.
class TaskPool {
 public:
  explicit TaskPool(TaskPoolOptions options);
  ~TaskPool();  // Stops.

  // Dropped after Stop. A task must not throw.
  void Post(const std::string& owner, std::function<void()> task);

  // Waits for the tasks that run and drops those that wait. Idempotent; not from a task.
  void Stop();

 private:
  void Run();
  // There is one. With the mutex.
  std::function<void()> TakeNext();

  const TaskPoolOptions options_;
  // Standard ones, not Abseil's: the thread sanitizer sees through them.
  std::mutex mutex_;  // Guards the next three.
  std::map<std::string, std::deque<std::function<void()>>> tasks_;  // Of owners that have some.
  std::deque<std::string> turns_;                                   // Each of them once.
  bool stopped_ = false;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace baton
