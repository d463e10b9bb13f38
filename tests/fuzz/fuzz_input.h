#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "router/generation/utf8.h"

// What the fuzz targets share. A target is LLVMFuzzerTestOneInput over the real code; a claim that
// does not hold ends the process by BATON_CHECK.
namespace baton {

// Values drawn from the front of an input; zeros once it is used up.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t Byte() { return static_cast<uint8_t>(Number(1)); }
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    for (const char c : Take(bytes)) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  }
  // In [0, n); n > 0.
  uint64_t Below(uint64_t n) { return Number(n > 256 ? 4 : 1) % n; }

  std::string_view Take(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view Rest() { return Take(rest_.size()); }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// What others sent is refused by name: one of `codes`, with a message that can be shown.
inline void CheckRefusal(const absl::Status& status,
                         std::initializer_list<absl::StatusCode> codes = {
                             absl::StatusCode::kInvalidArgument}) {
  BATON_CHECK(std::find(codes.begin(), codes.end(), status.code()) != codes.end());
  const std::string_view message(status.message().data(), status.message().size());
  BATON_CHECK(!message.empty() && message.size() <= size_t{16} << 10);
  BATON_CHECK(IsValidUtf8(message));
}

}  // namespace baton
