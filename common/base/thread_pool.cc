#include "common/base/thread_pool.h"

#include "common/base/check.h"
#include "common/base/this_thread.h"

namespace baton {
namespace {

// About ten microseconds: longer than the gap between two operators of a step.
constexpr int kSpins = 300;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `value` is no longer `old`: spins first, then sleeps in the kernel.
template <typename T>
void WaitWhile(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, int nice, const char* name) {
  BATON_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i, nice, name] {
      NameThisThread(name);
      LowerThisThread(nice);
      WorkerLoop(i);
    });
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
}

void ThreadPool::ParallelFor(int64_t num_tasks, Body body) {
  if (workers_.empty() || num_tasks <= 1) {
    for (int64_t i = 0; i < num_tasks; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  RunTasks(0);
  uint32_t left = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (; left != 0; left = gate_.load(std::memory_order_acquire)) WaitWhile(gate_, left);
}

void ThreadPool::RunTasks(int thread) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    (*body_)(task, thread);
  }
}

// Enters the call in progress, which may be a later one than woke the worker.
bool ThreadPool::Join() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  for (;;) {
    WaitWhile(calls_, seen);
    seen = calls_.load(std::memory_order_acquire);
    if (stopping_) return;
    if (!Join()) continue;
    RunTasks(thread);
    if (gate_.fetch_sub(1, std::memory_order_release) == 1) gate_.notify_one();
  }
}

}  // namespace baton
