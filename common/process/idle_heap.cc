#include "common/process/idle_heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace baton {
namespace {

// Resident pages of no file, without what is in use.
int64_t IdleBytes() {
  int64_t pages = 0, resident = 0, of_files = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident >> of_files;
  const struct mallinfo2 heap = mallinfo2();
  return (resident - of_files) * sysconf(_SC_PAGESIZE) -
         static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace

bool IdleHeap::Look() {
  const int64_t idle_bytes = IdleBytes();
  stays_bytes_ = std::min(stays_bytes_, idle_bytes);
  const bool is_too_much = idle_bytes > stays_bytes_ + most_bytes_;
  if (!std::exchange(was_too_much_, is_too_much) || !is_too_much) return false;
  malloc_trim(0);
  was_too_much_ = false;
  stays_bytes_ = IdleBytes();
  return true;
}

}  // namespace baton
