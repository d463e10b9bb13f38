#include "kernels/api/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kPage = 4096;
// A step reads every page of the weights and of its sequences' K/V: fewer and larger pages cost
// fewer walks.
constexpr int64_t kHugePage = int64_t{2} << 20;

// One piece is never that large; sanitizers end the process when asked for more.
constexpr int64_t kTooLarge = int64_t{1} << 40;

int64_t AlignmentOf(int64_t bytes) {
  if (bytes < kPage) return kCacheLine;
  return bytes < kHugePage ? kPage : kHugePage;
}

}  // namespace

absl::StatusOr<Buffer> AllocateHost(int64_t bytes) {
  BATON_CHECK(bytes >= 0);
  const int64_t alignment = AlignmentOf(bytes);
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = bytes < kTooLarge ? std::aligned_alloc(static_cast<size_t>(alignment),
                                                      static_cast<size_t>(rounded))
                                 : nullptr;
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  // Not what is behind the last whole one: of many experts' matrices that would be gigabytes.
  const int64_t whole = bytes / kHugePage * kHugePage;
  if (whole > 0) madvise(data, static_cast<size_t>(whole), MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(data), bytes, std::shared_ptr<void>(data, std::free));
}

}  // namespace baton
