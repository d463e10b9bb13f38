#include "common/base/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace baton {

absl::Status TouchPages(std::span<const std::byte> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t before = address % page;
  void* const first = const_cast<std::byte*>(bytes.data() - before);
  if (madvise(first, before + bytes.size(), MADV_POPULATE_READ) == 0) return absl::OkStatus();
  // All else says that it cannot be done this way, not that reading fails.
  if (errno != EFAULT && errno != EHWPOISON) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(bytes.size(),
                   " bytes of a mapped file cannot be read: it has become shorter, "
                   "or its disk fails"));
}

}  // namespace baton
