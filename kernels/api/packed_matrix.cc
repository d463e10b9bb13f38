#include "kernels/api/packed_matrix.h"

#include <sys/mman.h>

#include <cstdlib>

namespace baton {
namespace {

// A product reads every page of a matrix once: fewer and larger ones cost fewer walks.
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void PackedMatrix::Free::operator()(std::byte* p) const { std::free(p); }

std::byte* PackedMatrix::Allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const size_t alignment = size < kHugePage ? 64 : kHugePage;
  const size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data != nullptr && alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace baton
