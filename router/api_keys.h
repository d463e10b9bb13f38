#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// The API keys that the router accepts, as SHA-256 digests; the keys themselves are never held.
// Immutable and thread-safe.
class ApiKeys {
 public:
  // One line per key: `TENANT SHA256HEX`; empty lines and lines that begin with # are skipped. A
  // tenant may have several keys. INVALID_ARGUMENT or NOT_FOUND names file, line and cure.
  static absl::StatusOr<ApiKeys> Load(const std::string& path);

  // The tenant of the key in "Bearer KEY"; nothing when there is no such key. Takes the same time
  // whichever key matches: every digest is compared, each in constant time.
  std::optional<std::string> TenantOf(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    std::string tenant;
    Digest digest;
  };
  std::vector<Entry> entries_;
};

}  // namespace baton
