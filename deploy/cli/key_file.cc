#include "deploy/cli/key_file.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "router/api_keys.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kIdDigits = 12;
constexpr size_t kMinIdDigits = 8;

// The words of a line that has a key: tenant, digest and options.
std::vector<std::string> WordsOf(absl::string_view line) {
  std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"),
                                                  absl::SkipEmpty());
  if (!words.empty() && words[0][0] == '#') words.clear();
  return words;
}

std::string NewKey() {
  std::array<unsigned char, 32> secret;
  BATON_CHECK(RAND_bytes(secret.data(), secret.size()) == 1);
  const absl::string_view bytes(reinterpret_cast<const char*>(secret.data()), secret.size());
  return absl::StrCat("baton-", absl::WebSafeBase64Escape(bytes));
}

std::string Sha256Hex(const std::string& text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
         reinterpret_cast<uint8_t*>(digest.data()));
  return absl::BytesToHexString(digest);
}

// The options that a tenant's keys share, from the first of its lines.
std::vector<std::string> SharedOptions(const std::string& text, const std::string& tenant) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::vector<std::string> words = WordsOf(line);
    if (words.empty() || words[0] != tenant) continue;
    words.erase(words.begin(), words.begin() + 2);
    std::erase_if(words, [](const auto& word) { return absl::StartsWith(word, "expires="); });
    return words;
  }
  return {};
}

absl::Status Sync(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC);
  const bool is_kept = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (is_kept) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat(path, " cannot be written"));
}

// The file that replaces another one. While it lives no other edit of that file can begin; without
// Commit nothing has happened.
class Replacement {
 public:
  // Of a link the file that it names.
  static absl::StatusOr<Replacement> Begin(const std::string& path) {
    std::error_code ignored;
    std::error_code error;
    const bool is_link = fs::is_symlink(path, ignored);
    const fs::path target = is_link ? fs::canonical(path, error) : fs::path(path);
    if (error) {
      return absl::NotFoundError(absl::StrCat(path, " is a link to nothing: ", error.message()));
    }
    Replacement made(target.string());
    made.fd_ = open(made.fresh_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (made.fd_ >= 0) return made;
    if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat(made.fresh_, " cannot be made"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        made.fresh_, " is there: another `baton keys` runs, or has ended midway; then remove it"));
  }
  ~Replacement() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(fresh_.c_str());
  }
  Replacement(Replacement&& other) noexcept
      : target_(other.target_), fresh_(other.fresh_), fd_(std::exchange(other.fd_, -1)) {}

  absl::Status Commit(const std::string& text) {
    struct stat old{};
    const bool has_owner = stat(target_.c_str(), &old) == 0;
    if ((has_owner && fchown(fd_, old.st_uid, old.st_gid) != 0) || fchmod(fd_, 0600) != 0 ||
        !WriteAll(text) || fsync(fd_) != 0 || rename(fresh_.c_str(), target_.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat(target_, " cannot be replaced"));
    }
    close(std::exchange(fd_, -1));
    const std::string folder = fs::path(target_).parent_path().string();
    return Sync(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY);
  }

 private:
  explicit Replacement(std::string target)
      : target_(std::move(target)), fresh_(absl::StrCat(target_, ".new")) {}

  bool WriteAll(absl::string_view text) const {
    while (!text.empty()) {
      const ssize_t wrote = write(fd_, text.data(), text.size());
      if (wrote <= 0) return false;
      text.remove_prefix(static_cast<size_t>(wrote));
    }
    return true;
  }

  const std::string target_;
  const std::string fresh_;
  int fd_ = -1;
};

}  // namespace

absl::Status KeyFile::Fail(absl::StatusCode code, const std::string& what) const {
  return absl::Status(code, absl::StrCat(path_, ": ", what));
}

absl::StatusOr<std::string> KeyFile::Read() const {
  absl::StatusOr<std::string> text = ApiKeys::ReadFile(path_);
  if (text.ok()) return text;
  return Fail(absl::StatusCode::kNotFound, "cannot be read; `baton keys add` makes such a file");
}

absl::StatusOr<std::string> KeyFile::Add(const std::string& tenant,
                                         const std::vector<std::string>& options) const {
  ASSIGN_OR_RETURN(Replacement replacement, Replacement::Begin(path_));
  std::error_code error;
  std::string text;
  if (fs::exists(path_, error)) {
    ASSIGN_OR_RETURN(text, Read());
  }
  if (!text.empty() && text.back() != '\n') text.push_back('\n');
  std::vector<std::string> words = options;
  const bool is_limited = std::ranges::any_of(
      options, [](const auto& word) { return !absl::StartsWith(word, "expires="); });
  if (!is_limited) {
    const std::vector<std::string> shared = SharedOptions(text, tenant);
    words.insert(words.begin(), shared.begin(), shared.end());
  }
  const std::string key = NewKey();
  std::vector<std::string> line = {tenant, Sha256Hex(key)};
  line.insert(line.end(), words.begin(), words.end());
  const std::string added = absl::StrJoin(line, " ");
  if (WordsOf(added) != line || absl::StrContains(added, '\n')) {
    return Fail(absl::StatusCode::kInvalidArgument,
                "a tenant is one word, which does not begin with #, and so is each option");
  }
  absl::StrAppend(&text, added, "\n");
  const std::vector<std::string> problems = ApiKeys::Problems(text);
  if (!problems.empty()) return Fail(absl::StatusCode::kInvalidArgument, problems[0]);
  RETURN_IF_ERROR(replacement.Commit(text));
  return key;
}

absl::Status KeyFile::Remove(const std::string& id) const {
  const std::string digits = absl::AsciiStrToLower(id);
  if (digits.size() < kMinIdDigits) {
    return Fail(absl::StatusCode::kInvalidArgument,
                absl::StrCat("\"", id, "\" is too short; give at least ", kMinIdDigits,
                             " digits, as `baton keys list` shows them"));
  }
  ASSIGN_OR_RETURN(Replacement replacement, Replacement::Begin(path_));
  ASSIGN_OR_RETURN(const std::string text, Read());
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const size_t removed = std::erase_if(lines, [&](const std::string& line) {
    const std::vector<std::string> words = WordsOf(line);
    return words.size() > 1 && absl::StartsWith(absl::AsciiStrToLower(words[1]), digits);
  });
  if (removed != 1) {
    return Fail(absl::StatusCode::kNotFound,
                absl::StrCat(removed, " keys begin with ", id, "; see `baton keys list`"));
  }
  const std::string rest = absl::StrJoin(lines, "\n");
  const std::vector<std::string> problems = ApiKeys::Problems(rest);
  if (!problems.empty()) {
    return Fail(absl::StatusCode::kFailedPrecondition,
                absl::StrCat("without this key the router would keep the old file: it ",
                             problems[0]));
  }
  return replacement.Commit(rest);
}

absl::StatusOr<std::vector<ListedKey>> KeyFile::List() const {
  ASSIGN_OR_RETURN(const std::string text, Read());
  std::vector<ListedKey> keys;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = WordsOf(line);
    if (words.size() < 2) continue;
    keys.push_back({.tenant = words[0],
                    .id = words[1].substr(0, kIdDigits),
                    .options = absl::StrJoin(words.begin() + 2, words.end(), " ")});
  }
  return keys;
}

absl::StatusOr<std::vector<std::string>> KeyFile::Check() const {
  ASSIGN_OR_RETURN(const std::string text, Read());
  return ApiKeys::Problems(text);
}

}  // namespace baton::cli
