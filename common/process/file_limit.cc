#include "common/process/file_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace baton {

int64_t RaiseFileLimit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 0;
  const rlimit most{.rlim_cur = files.rlim_max, .rlim_max = files.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &most) == 0) files = most;
  return static_cast<int64_t>(std::min<rlim_t>(files.rlim_cur, INT64_MAX));
}

}  // namespace baton
