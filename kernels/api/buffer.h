#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/dtype.h"
#include "kernels/api/operands.h"

namespace baton {

enum class MemoryKind : uint8_t {
  kDevice,
  kPinned,  // The host and the device's kernels may touch it.
};

// Owns memory of a device, uninitialised; move-only. Numbers in it are reached as Floats only, so
// that nobody takes a half for a float.
class Buffer {
 public:
  Buffer() = default;
  // `owner` frees the memory with its last copy, and keeps alive what that takes.
  Buffer(std::byte* data, int64_t bytes, std::shared_ptr<void> owner)
      : data_(data), size_bytes_(bytes), owner_(std::move(owner)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    owner_ = std::move(other.owner_);
    return *this;
  }

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

  // From element `first`, which must be within.
  Floats floats(DType dtype, int64_t first = 0) const {
    BATON_CHECK(first >= 0 && first * SizeOf(dtype) <= size_bytes_);
    return Floats(data_, dtype).At(first);
  }

  // Integers and descriptors.
  template <typename T>
  T* array(int64_t first_byte = 0) const {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_floating_point_v<T>,
                  "numbers are reached by floats()");
    BATON_CHECK(first_byte >= 0 && first_byte <= size_bytes_ && first_byte % alignof(T) == 0);
    return reinterpret_cast<T*>(data_ + first_byte);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  std::shared_ptr<void> owner_;
};

// Memory of the process: aligned to 64 bytes, to pages when it has any, to huge ones (which are
// then asked for) when it has those. RESOURCE_EXHAUSTED names the size.
absl::StatusOr<Buffer> AllocateHost(int64_t bytes);

}  // namespace baton
