#include "router/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr size_t kMaxTenantBytes = 128;

bool IsHexDigest(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return std::isxdigit(c) != 0; });
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("--api-keys-file ", path,
                                            ": cannot be read; name a file of TENANT SHA256HEX "
                                            "lines"));
  }
  ApiKeys keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string tenant, hex, rest;
    words >> tenant >> hex >> rest;
    if (tenant.empty() || tenant[0] == '#') continue;
    if (tenant.size() > kMaxTenantBytes || !IsHexDigest(hex) || !rest.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--api-keys-file ", path, ": line ", number,
                       " is not TENANT and 64 hex digits; make them with `printf %s KEY | "
                       "sha256sum`"));
    }
    Entry entry{.tenant = tenant};
    const std::string bytes = absl::HexStringToBytes(hex);
    std::copy(bytes.begin(), bytes.end(), entry.digest.begin());
    keys.entries_.push_back(std::move(entry));
  }
  if (keys.entries_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--api-keys-file ", path, ": holds no key; add a line, or leave the option away"));
  }
  return keys;
}

std::optional<std::string> ApiKeys::TenantOf(std::string_view authorization) const {
  if (authorization.substr(0, kScheme.size()) != kScheme) return std::nullopt;
  authorization.remove_prefix(kScheme.size());
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(authorization.data()), authorization.size(),
         digest.data());
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    const bool same = CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0;
    found = same ? &entry : found;
  }
  if (found == nullptr) return std::nullopt;
  return found->tenant;
}

}  // namespace baton
