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
  // [weight=N] [quota=N/day] [max_priority=N] [expires=DATE]`, see TenantLimits; burst is 2 x rate
  // unless given. DATE is YYYY-MM-DD, which is 00:00 UTC of that day, or RFC 3339, and is the
  // key's; all else is the tenant's, who may have several keys, of the same limits. Empty lines and
  // lines that begin with # are skipped. INVALID_ARGUMENT or NOT_FOUND names file, line and cure.
  // `others`: the limits that lines without them leave.
  static absl::StatusOr<ApiKeys> Load(const std::string& path, const TenantLimits& others = {});

  // The same in two steps, for who looks at the file again and again.
  static absl::StatusOr<std::string> ReadFile(const std::string& path);
  static absl::StatusOr<ApiKeys> Parse(const std::string& path, const std::string& text,
                                       const TenantLimits& others);

  // All that is wrong with a text, for each bad line "line N ..."; empty: Parse takes it.
  static std::vector<std::string> Problems(const std::string& text);

  // The tenant of the key in "Bearer KEY", its first word in any case. UNAUTHENTICATED when there
  // is no such key, or it has expired, which its holder is told. Takes the same time whichever key
  // matches: every digest is compared, each in constant time.
  absl::StatusOr<std::string> Authenticate(std::string_view authorization, int64_t now_s) const;

  const std::map<std::string, TenantLimits>& limits() const { return limits_; }
  size_t num_keys() const { return entries_.size(); }

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    std::string tenant;
    Digest digest;
    std::optional<int64_t> expires_s;  // Since 1970.
    // What a line says twice.
    bool IsAs(const Entry& other) const {
      return tenant == other.tenant && expires_s == other.expires_s;
    }
  };
  // Adds a line's key; an error says what is wrong with it.
  absl::Status AddLine(const std::string& line, const TenantLimits& others);
  // Adds the keys of all lines; what is wrong with those that have none.
  std::vector<std::string> AddLines(const std::string& text, const TenantLimits& others);

  std::vector<Entry> entries_;
  std::map<std::string, TenantLimits> limits_;  // Of every tenant.
};

}  // namespace baton
