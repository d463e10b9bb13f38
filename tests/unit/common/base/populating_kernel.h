#pragma once

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace baton {

// False before Linux 5.14, where reading is the one way to find that a page cannot be read.
inline bool KernelFindsUnreadablePages() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const one = mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool finds = madvise(one, page, MADV_POPULATE_READ) == 0;
  munmap(one, page);
  return finds;
}

}  // namespace baton
