#include "router/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr size_t kMaxTenantBytes = 128;

bool IsHexDigest(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// `name=NUMBER[unit]`, between least and most.
struct Setting {
  const char* name;
  const char* unit;
  double least;
  double most;
  bool whole;
  std::function<void(double)> set;
};

absl::Status Read(const std::string& word, const std::vector<Setting>& settings) {
  const std::vector<std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  const auto it = std::ranges::find(settings, parts[0], &Setting::name);
  if (it == settings.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", parts[0], "; a key's line takes rate, burst, tokens, concurrency, weight, "
        "max_priority"));
  }
  absl::string_view number = parts.size() > 1 ? absl::string_view(parts[1]) : "";
  double value = 0;
  const bool is_number = absl::ConsumeSuffix(&number, it->unit) &&
                         absl::SimpleAtod(number, &value) && value >= it->least &&
                         value <= it->most && (!it->whole || value == std::floor(value));
  if (!is_number) {
    return absl::InvalidArgumentError(
        absl::StrFormat("has %s; allowed: %s=N%s, N %s from %g to %g", word, it->name, it->unit,
                        it->whole ? "whole," : "", it->least, it->most));
  }
  it->set(value);
  return absl::OkStatus();
}

absl::StatusOr<TenantLimits> ReadLimits(std::istream& words, const TenantLimits& others) {
  TenantLimits limits = others;
  const std::vector<Setting> settings = {
      {"rate", "/s", 0.001, 1e6, false, [&](double v) { limits.requests_per_s = v; }},
      {"burst", "", 1, 1e6, true, [&](double v) { limits.burst = v; }},
      {"tokens", "/min", 1, 1e12, true,
       [&](double v) { limits.tokens_per_min = static_cast<int64_t>(v); }},
      {"concurrency", "", 1, 1 << 24, true,
       [&](double v) { limits.concurrency = static_cast<int32_t>(v); }},
      {"weight", "", 1, 1000, true, [&](double v) { limits.weight = static_cast<int32_t>(v); }},
      {"max_priority", "", -2147483648.0, 2147483647.0, true,
       [&](double v) { limits.max_priority = static_cast<int32_t>(v); }}};
  std::set<std::string> seen;
  for (std::string word; words >> word;) {
    if (!seen.insert(word.substr(0, word.find('='))).second) {
      return absl::InvalidArgumentError(absl::StrCat("has ", word, " beside another; once each"));
    }
    RETURN_IF_ERROR(Read(word, settings));
  }
  if (limits.burst > 0 && limits.requests_per_s == 0) {
    return absl::InvalidArgumentError("has burst without rate; say both, or neither");
  }
  if (limits.requests_per_s > 0 && limits.burst == 0) {
    limits.burst = std::max(1.0, 2 * limits.requests_per_s);
  }
  return limits;
}

}  // namespace

absl::Status ApiKeys::AddLine(const std::string& line, const TenantLimits& others) {
  std::istringstream words(line);
  std::string tenant, hex;
  words >> tenant >> hex;
  if (tenant.empty() || tenant[0] == '#') return absl::OkStatus();
  if (tenant.size() > kMaxTenantBytes || !IsHexDigest(hex)) {
    return absl::InvalidArgumentError(
        "is not TENANT and 64 hex digits; make them with `printf %s KEY | sha256sum`");
  }
  ASSIGN_OR_RETURN(const TenantLimits limits, ReadLimits(words, others));
  const auto [known, is_new] = limits_.emplace(tenant, limits);
  if (!is_new && known->second != limits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gives ", tenant, " other limits than a line before; all lines of a tenant must agree"));
  }
  Entry entry{.tenant = tenant};
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), entry.digest.begin());
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::string& path, const TenantLimits& others) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("--api-keys-file ", path,
                                            ": cannot be read; name a file of TENANT SHA256HEX "
                                            "lines"));
  }
  ApiKeys keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (absl::Status status = keys.AddLine(line, others); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--api-keys-file ", path, ": line ", number,
                                                     " ", status.message()));
    }
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
