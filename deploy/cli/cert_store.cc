#include "deploy/cli/cert_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tls/tls_files.h"
#include "deploy/cli/machine.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kCurrent[] = "..data";  // The one link that is replaced.

absl::Status WriteFile(const fs::path& path, const std::string& text, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), " cannot be made"));
  const bool wrote = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const bool kept = fsync(fd) == 0;
  close(fd);
  if (wrote && kept) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), " cannot be written"));
}

absl::Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) fs::permissions(path, fs::perms::owner_all, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path.string(), " cannot be made: ", error.message()));
}

// Replaces the link as one step, whether it is there or not.
absl::Status Link(const std::string& target, const fs::path& link) {
  std::error_code error;
  const fs::path fresh = link.string() + ".new";
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(link.string(), " cannot be linked: ", error.message()));
}

// The name of a generation that Switch made, beside the link: nothing else of whoever could write
// the link is removed.
bool IsGeneration(const fs::path& name) {
  const std::string text = name.string();
  return text.starts_with("..") && text.size() > 2 && absl::ascii_isdigit(text[2]) &&
         text.find('/') == std::string::npos;
}

}  // namespace

absl::Status CertStore::Init(const std::string& trust_domain, int64_t now_s) const {
  ASSIGN_OR_RETURN(const CertificateAuthority made,
                   CertificateAuthority::Make(trust_domain, now_s));
  const fs::path ca = fs::path(dir_) / "ca";
  std::error_code error;
  if (fs::exists(ca / "ca.key", error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--dir ", dir_, ": there is a CA already; with another one every certificate is void. "
        "Name another folder"));
  }
  // All of it or nothing: half a CA would be neither used nor replaced.
  const fs::path fresh = fs::path(dir_) / "ca.new";
  RETURN_IF_ERROR(MakeFolder(dir_));
  fs::remove_all(fresh, error);
  RETURN_IF_ERROR(MakeFolder(fresh));
  RETURN_IF_ERROR(WriteFile(fresh / "ca.key", made.key_pem(), 0600));
  RETURN_IF_ERROR(WriteFile(fresh / "ca.crt", made.certificate_pem(), 0644));
  fs::rename(fresh, ca, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(ca.string(), " cannot be made: ", error.message()));
}

absl::StatusOr<CertificateAuthority> CertStore::Authority() const {
  const fs::path ca = fs::path(dir_) / "ca";
  const std::string key = ReadSmallFile(ca / "ca.key");
  if (key.empty()) {
    return absl::NotFoundError(absl::StrCat("--dir ", dir_,
                                            ": has no ca/ca.key; `baton certs init` makes a CA"));
  }
  return CertificateAuthority::Parse(key, ReadSmallFile(ca / "ca.crt"));
}

std::string CertStore::RoleDir(TlsRole role) const {
  return absl::StrCat(dir_, "/", RoleWord(role));
}

absl::Status CertStore::Issue(const SpiffeId& id, int64_t now_s, int64_t days) const {
  ASSIGN_OR_RETURN(const CertificateAuthority authority, Authority());
  ASSIGN_OR_RETURN(const TlsFiles files, authority.Issue(id, now_s, days));
  return Switch(id.role, files, now_s);
}

absl::Status CertStore::Switch(TlsRole role, const TlsFiles& files, int64_t now_s) const {
  const fs::path folder = RoleDir(role);
  RETURN_IF_ERROR(MakeFolder(folder));
  std::error_code error;
  const fs::path before = fs::read_symlink(folder / kCurrent, error);
  std::string name = absl::StrCat("..", now_s);
  for (int i = 1; fs::exists(folder / name, error); ++i) name = absl::StrCat("..", now_s, ".", i);
  RETURN_IF_ERROR(MakeFolder(folder / name));
  RETURN_IF_ERROR(WriteFile(folder / name / "tls.key", files.key_pem, 0600));
  RETURN_IF_ERROR(WriteFile(folder / name / "tls.crt", files.chain_pem, 0644));
  RETURN_IF_ERROR(WriteFile(folder / name / "ca.crt", files.ca_pem, 0644));
  RETURN_IF_ERROR(Link(name, folder / kCurrent));
  for (const char* file : {"tls.key", "tls.crt", "ca.crt"}) {
    if (fs::is_symlink(folder / file, error)) continue;
    RETURN_IF_ERROR(Link(absl::StrCat(kCurrent, "/", file), folder / file));
  }
  if (IsGeneration(before)) fs::remove_all(folder / before, error);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TlsRole>> CertStore::Renew(bool all, int64_t now_s) const {
  std::vector<TlsRole> renewed;
  for (const TlsRole role : kTlsRoles) {
    std::error_code error;
    if (!fs::exists(RoleDir(role), error)) continue;
    ASSIGN_OR_RETURN(const TlsFiles files, ReadTlsFiles(RoleDir(role)));
    // One that has expired is renewed too: as of its own last second it is good.
    const std::vector<CertPtr> chain = ParseCertificates(files.chain_pem);
    const int64_t end_s = chain.empty() ? 0 : NotAfter(chain[0].get());
    ASSIGN_OR_RETURN(const TlsIdentity old, CheckTlsFiles(files, std::min(now_s, end_s - 1)));
    if (!all && end_s - now_s > kRenewBeforeEndDays * kDayS) continue;
    RETURN_IF_ERROR(Issue(old.id, now_s));
    renewed.push_back(role);
  }
  return renewed;
}

}  // namespace baton::cli
