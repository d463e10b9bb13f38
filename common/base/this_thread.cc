#include "common/base/this_thread.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/check.h"

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace baton {

void NameThisThread(const char* name) {
  BATON_CHECK(pthread_setname_np(pthread_self(), name) == 0);
}

NameNewThreads::NameNewThreads(const char* name) {
  BATON_CHECK(pthread_getname_np(pthread_self(), own_name_, sizeof(own_name_)) == 0);
  NameThisThread(name);
}

NameNewThreads::~NameNewThreads() { NameThisThread(own_name_); }

void LowerThisThread(int nice) {
#if defined(__linux__)
  // 0 names the calling thread here, other than in POSIX.
  if (nice > 0) setpriority(PRIO_PROCESS, 0, std::min(19, getpriority(PRIO_PROCESS, 0) + nice));
#else
  static_cast<void>(nice);
#endif
}

QueuedThreads QueuedForCore(std::string_view name_prefix) {
  QueuedThreads threads;
  // Neither throws: a thread may end while it is looked at.
  std::error_code error;
  std::filesystem::directory_iterator task("/proc/self/task", error);
  for (; task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::string name;
    if (!std::getline(std::ifstream(task->path() / "comm"), name)) continue;
    if (!name.starts_with(name_prefix)) continue;
    int64_t ran = 0, queued = 0;
    if (!(std::ifstream(task->path() / "schedstat") >> ran >> queued)) continue;
    threads[task->path().filename()] =
        std::chrono::duration_cast<Duration>(std::chrono::nanoseconds(queued));
  }
  return threads;
}

}  // namespace baton
