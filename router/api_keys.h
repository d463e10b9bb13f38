#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "router/generation/tenant_quotas.h"

namespace baton {

// The API keys that the router accepts, as SHA-256 digests; the keys themselves are never held.
// Immutable and thread-safe.
class ApiKeys {
 public:
  // One line per key: `TENANT SHA256HEX [rate=N/s] [burst=N] [tokens=N/min] [concurrency=N]
  // [weight=N] [max_priority=N]`, see TenantLimits; burst is 2 x rate unless given. Empty lines and lines that
  // begin with # are skipped. A tenant may have several keys, of the same limits. INVALID_ARGUMENT
  // or NOT_FOUND names file, line and cure. `others`: the limits that lines without them leave.
  static absl::StatusOr<ApiKeys> Load(const std::string& path, const TenantLimits& others = {});

  // The tenant of the key in "Bearer KEY"; nothing when there is no such key. Takes the same time
  // whichever key matches: every digest is compared, each in constant time.
  std::optional<std::string> TenantOf(std::string_view authorization) const;

  const std::map<std::string, TenantLimits>& limits() const { return limits_; }

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    std::string tenant;
    Digest digest;
  };
  // Adds a line's key; an error says what is wrong with it.
  absl::Status AddLine(const std::string& line, const TenantLimits& others);

  std::vector<Entry> entries_;
  std::map<std::string, TenantLimits> limits_;  // Of every tenant.
};

}  // namespace baton
