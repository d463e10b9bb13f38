#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

// Who a process is to the others. Admin: an operator's tool.
enum class TlsRole : uint8_t { kRouter, kPrefill, kDecode, kAdmin };
inline constexpr TlsRole kTlsRoles[] = {TlsRole::kRouter, TlsRole::kPrefill, TlsRole::kDecode,
                                        TlsRole::kAdmin};

absl::string_view RoleWord(TlsRole role);

// INVALID_ARGUMENT lists the words.
absl::StatusOr<TlsRole> ParseTlsRole(absl::string_view word);

// spiffe://TRUST_DOMAIN/ns/NAMESPACE/sa/RELEASE-ROLE
struct SpiffeId {
  std::string trust_domain;
  std::string name_space;
  std::string release;
  TlsRole role = TlsRole::kAdmin;

  std::string ToUri() const;

  // All but the role: only processes of one release know each other.
  bool SameRelease(const SpiffeId& other) const;
};

// INVALID_ARGUMENT when `uri` is not exactly of that form.
absl::StatusOr<SpiffeId> ParseSpiffeId(absl::string_view uri);

// INVALID_ARGUMENT: `word` cannot be a part of an id: letters, digits, dots and dashes may.
absl::Status CheckIdWord(absl::string_view option, absl::string_view word);

}  // namespace baton
