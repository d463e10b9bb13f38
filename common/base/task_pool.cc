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

void TaskPool::Post(const std::string& owner, std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    std::deque<std::function<void()>>& tasks = tasks_[owner];
    if (tasks.empty()) turns_.push_back(owner);
    tasks.push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskPool::Stop() {
  std::map<std::string, std::deque<std::function<void()>>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
    turns_.clear();
  }
  dropped.clear();  // Without the lock: what a task holds may post when it goes.
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

std::function<void()> TaskPool::TakeNext() {
  std::string owner = std::move(turns_.front());
  turns_.pop_front();
  const auto it = tasks_.find(owner);
  std::function<void()> task = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) {
    tasks_.erase(it);
  } else {
    turns_.push_back(std::move(owner));
  }
  return task;
}

void TaskPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopped_ || !turns_.empty(); });
    if (stopped_) return;
    std::function<void()> task = TakeNext();
    lock.unlock();
    task();
    task = nullptr;  // What it holds goes without the lock.
    lock.lock();
  }
}

}  // namespace baton
