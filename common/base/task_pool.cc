#include "common/base/task_pool.h"

#include <utility>

#include "common/base/this_thread.h"

namespace baton {

TaskPool::TaskPool(TaskPoolOptions options) : options_(std::move(options)) {
  for (int i = 0; i < options_.num_threads; ++i) {
    threads_.emplace_back([this] {
      NameThisThread(options_.name.c_str());
      LowerThisThread(options_.nice);
      Run();
    });
  }
}

TaskPool::~TaskPool() { Stop(); }

void TaskPool::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskPool::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
  }
  dropped.clear();  // Without the lock: what a task holds may post when it goes.
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void TaskPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // What it holds goes without the lock.
    lock.lock();
  }
}

}  // namespace baton
