#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

// One contiguous copy between addresses of the device, or of pinned memory. Bytes and addresses are
// multiples of 8.
struct CopyPiece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

}  // namespace baton
