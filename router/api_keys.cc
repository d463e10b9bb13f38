#include "router/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/status.h"

namespace baton {
namespace {

constexpr absl::string_view kScheme = "Bearer ";
constexpr size_t kMaxTenantBytes = 128;

bool IsHexDigest(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Workers refuse what others could not print (CheckLabel), and an editor's mark before the first
// line would make another tenant of it.
bool IsTenantName(const std::string& text) {
  return !text.starts_with("\xef\xbb\xbf") &&
         std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
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
        "has ", parts[0],
        "; a key's line takes rate, burst, tokens, concurrency, weight, quota, max_priority, "
        "expires"));
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

// YYYY-MM-DD or RFC 3339; not the other words that Abseil takes for a time.
absl::StatusOr<int64_t> ReadExpiry(const std::string& word) {
  const std::string date = word.substr(word.find('=') + 1);
  const bool is_day = date.size() == 10;
  absl::Time time;
  std::string error;
  if (std::isdigit(static_cast<unsigned char>(date[0])) != 0 && date.size() >= 10 &&
      absl::ParseTime(is_day ? "%Y-%m-%d" : absl::RFC3339_full, date, &time, &error)) {
    return absl::ToUnixSeconds(time);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "has ", word, "; allowed: expires=YYYY-MM-DD, or a time as 2027-01-31T18:00:00Z"));
}

absl::StatusOr<TenantLimits> ReadLimits(std::istream& words, const TenantLimits& others,
                                        std::optional<int64_t>* expires_s) {
  TenantLimits limits = others;
  const std::vector<Setting> settings = {
      {"rate", "/s", 0.001, 1e6, false, [&](double v) { limits.requests_per_s = v; }},
      {"burst", "", 1, 1e6, true, [&](double v) { limits.burst = v; }},
      {"tokens", "/min", 1, 1e12, true,
       [&](double v) { limits.tokens_per_min = static_cast<int64_t>(v); }},
      {"concurrency", "", 1, 1 << 24, true,
       [&](double v) { limits.concurrency = static_cast<int32_t>(v); }},
      {"weight", "", 1, 1000, true, [&](double v) { limits.weight = static_cast<int32_t>(v); }},
      {"quota", "/day", 1, 1e12, true,
       [&](double v) { limits.tokens_per_day = static_cast<int64_t>(v); }},
      {"max_priority", "", -2147483648.0, 2147483647.0, true,
       [&](double v) { limits.max_priority = static_cast<int32_t>(v); }}};
  std::set<std::string> seen;
  for (std::string word; words >> word;) {
    if (!seen.insert(word.substr(0, word.find('='))).second) {
      return absl::InvalidArgumentError(absl::StrCat("has ", word, " beside another; once each"));
    }
    if (word.substr(0, word.find('=')) == "expires") {
      ASSIGN_OR_RETURN(*expires_s, ReadExpiry(word));
    } else {
      RETURN_IF_ERROR(Read(word, settings));
    }
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
  if (!IsTenantName(tenant)) {
    return absl::InvalidArgumentError(
        "has a tenant with control characters or a byte order mark, which nobody would see; leave "
        "them away");
  }
  Entry entry{.tenant = tenant};
  ASSIGN_OR_RETURN(const TenantLimits limits, ReadLimits(words, others, &entry.expires_s));
  const auto [known, is_new] = limits_.emplace(tenant, limits);
  if (!is_new && known->second != limits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gives ", tenant, " other limits than a line before; all lines of a tenant must agree"));
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), entry.digest.begin());
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

std::vector<std::string> ApiKeys::AddLines(const std::string& text, const TenantLimits& others) {
  std::vector<std::string> problems;
  std::map<Digest, size_t> by_key;  // In entries_.
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const size_t index = entries_.size();
    absl::Status status = AddLine(line, others);
    if (status.ok() && entries_.size() > index) {
      const size_t first = by_key.emplace(entries_[index].digest, index).first->second;
      if (!entries_[index].IsAs(entries_[first])) {
        status = absl::InvalidArgumentError(
            "has the key of a line before, and another tenant or date; each key once");
      }
    }
    if (!status.ok()) problems.push_back(absl::StrCat("line ", number, " ", status.message()));
  }
  if (problems.empty() && entries_.empty()) {
    problems.push_back("holds no key; add a line, or leave the option away");
  }
  return problems;
}

std::vector<std::string> ApiKeys::Problems(const std::string& text) {
  return ApiKeys().AddLines(text, {});
}

absl::StatusOr<std::string> ApiKeys::ReadFile(const std::string& path) {
  // Links are followed: a Secret of Kubernetes is one. To open a FIFO may wait for ever.
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-keys-file ", path,
                     ": is no regular file, and what is none has no end "
                     "or comes once only; name a file, or a link to one"));
  }
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || text.bad()) {
    return absl::NotFoundError(absl::StrCat("--api-keys-file ", path,
                                            ": cannot be read; name a file of TENANT SHA256HEX "
                                            "lines"));
  }
  return text.str();
}

absl::StatusOr<ApiKeys> ApiKeys::Parse(const std::string& path, const std::string& text,
                                       const TenantLimits& others) {
  ApiKeys keys;
  const std::vector<std::string> problems = keys.AddLines(text, others);
  if (problems.empty()) return keys;
  return absl::InvalidArgumentError(absl::StrCat("--api-keys-file ", path, ": ", problems[0]));
}

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::string& path, const TenantLimits& others) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return Parse(path, text, others);
}

absl::StatusOr<std::string> ApiKeys::Authenticate(std::string_view authorization,
                                                  int64_t now_s) const {
  const bool has_key = absl::StartsWithIgnoreCase(
      absl::string_view(authorization.data(), authorization.size()), kScheme);
  if (has_key) authorization.remove_prefix(kScheme.size());
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(authorization.data()), authorization.size(),
         digest.data());
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    const bool same = CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0;
    found = same ? &entry : found;
  }
  if (!has_key || found == nullptr) {
    return absl::UnauthenticatedError(
        "An API key is needed: send `Authorization: Bearer KEY`.");
  }
  if (found->expires_s.has_value() && now_s >= *found->expires_s) {
    const std::string date = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                                              absl::FromUnixSeconds(*found->expires_s),
                                              absl::UTCTimeZone());
    return absl::UnauthenticatedError(
        absl::StrCat("This API key expired on ", date, "; ask for a new one."));
  }
  return found->tenant;
}

}  // namespace baton
