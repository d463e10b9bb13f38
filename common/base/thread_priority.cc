#include "common/base/thread_priority.h"

#include <algorithm>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace baton {

void LowerThreadPriority(int nice) {
#if defined(__linux__)
  // 0 names the calling thread here, other than in POSIX.
  if (nice > 0) {
    setpriority(PRIO_PROCESS, 0, std::min(19, getpriority(PRIO_PROCESS, 0) + nice));
  }
#else
  static_cast<void>(nice);
#endif
}

}  // namespace baton
