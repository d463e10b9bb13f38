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

// Bytes whose sum is to be told; address and number of bytes are multiples of 4. The sum is that of
// the words of 32 bits, each times a factor of its place: the number that splitmix64 makes of the
// place, made odd. It is taken modulo 2^64, so the order of additions does not matter.
struct SummedPiece {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  uint64_t* sum = nullptr;
};

}  // namespace baton
