#include "common/tls/spiffe_id.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr absl::string_view kUriScheme = "spiffe://";
constexpr size_t kMaxWordBytes = 253;

bool IsWord(absl::string_view word) {
  return !word.empty() && word.size() <= kMaxWordBytes &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-';
         });
}

}  // namespace

absl::string_view RoleWord(TlsRole role) {
  switch (role) {
    case TlsRole::kRouter:
      return "router";
    case TlsRole::kPrefill:
      return "prefill";
    case TlsRole::kDecode:
      return "decode";
    case TlsRole::kAdmin:
      return "admin";
  }
  return "";
}

absl::StatusOr<TlsRole> ParseTlsRole(absl::string_view word) {
  for (const TlsRole role : kTlsRoles) {
    if (word == RoleWord(role)) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("role ", word, ": must be one of router, prefill, decode, admin"));
}

std::string SpiffeId::ToUri() const {
  return absl::StrCat(kUriScheme, trust_domain, "/ns/", name_space, "/sa/", release, "-",
                      RoleWord(role));
}

bool SpiffeId::SameRelease(const SpiffeId& other) const {
  return trust_domain == other.trust_domain && name_space == other.name_space &&
         release == other.release;
}

absl::StatusOr<SpiffeId> ParseSpiffeId(absl::string_view uri) {
  const absl::Status bad = absl::InvalidArgumentError(
      "is not spiffe://TRUST/ns/NAMESPACE/sa/RELEASE-{router,prefill,decode,admin}");
  if (!absl::StartsWith(uri, kUriScheme)) return bad;
  const std::vector<absl::string_view> parts = absl::StrSplit(uri.substr(kUriScheme.size()), '/');
  if (parts.size() != 5 || parts[1] != "ns" || parts[3] != "sa") return bad;
  const size_t dash = parts[4].rfind('-');
  if (dash == absl::string_view::npos) return bad;
  const absl::StatusOr<TlsRole> role = ParseTlsRole(parts[4].substr(dash + 1));
  const absl::string_view release = parts[4].substr(0, dash);
  if (!role.ok() || !IsWord(parts[0]) || !IsWord(parts[2]) || !IsWord(release)) return bad;
  return SpiffeId{.trust_domain = std::string(parts[0]),
                  .name_space = std::string(parts[2]),
                  .release = std::string(release),
                  .role = *role};
}

absl::Status CheckIdWord(absl::string_view option, absl::string_view word) {
  if (IsWord(word)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " '", word, "': must be letters, digits, dots and dashes"));
}

}  // namespace baton
