#include "deploy/cli/cert_store.h"

#include <fcntl.h>
#include <sys/file.h>
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

// Held while a folder is changed; goes with its process, however that ends.
class FolderLock {
 public:
  static absl::StatusOr<FolderLock> Take(const std::string& dir) {
    const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
      return absl::NotFoundError(
          absl::StrCat("--dir ", dir, ": there is no such folder; `baton certs init` makes a CA"));
    }
    FolderLock lock(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
    return absl::UnavailableError(
        absl::StrCat("--dir ", dir, ": another `baton certs` changes it; try again"));
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(FolderLock&& other) : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

// The name of a folder that Switch made, beside the link.
bool IsEdition(const fs::path& name) {
  const std::string text = name.string();
  return text.starts_with("..") && text.size() > 2 && absl::ascii_isdigit(text[2]);
}

// One that has expired is good as of its own last second.
absl::StatusOr<TlsIdentity> CheckAsOfItsTime(const TlsFiles& files, int64_t now_s) {
  const std::vector<CertPtr> chain = ParseCertificates(files.chain_pem);
  const int64_t end_s = chain.empty() ? 0 : NotAfter(chain[0].get());
  return CheckTlsFiles(files, std::min(now_s, end_s - 1));
}

}  // namespace

absl::Status CertStore::Init(const std::string& trust_domain, int64_t now_s) const {
  ASSIGN_OR_RETURN(const CertificateAuthority made,
                   CertificateAuthority::Make(trust_domain, now_s));
  RETURN_IF_ERROR(MakeFolder(dir_));
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(dir_));
  const fs::path ca = fs::path(dir_) / "ca";
  std::error_code error;
  if (fs::exists(ca / "ca.key", error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--dir ", dir_, ": there is a CA already; with another one every certificate is void. "
        "Name another folder"));
  }
  // All of it or nothing: half a CA would be neither used nor replaced.
  const fs::path fresh = fs::path(dir_) / "ca.new";
  fs::remove_all(fresh, error);
  RETURN_IF_ERROR(MakeFolder(fresh));
  RETURN_IF_ERROR(WriteFile(fresh / "ca.key", made.key_pem(), 0600));
  RETURN_IF_ERROR(WriteFile(fresh / "ca.crt", made.certificate_pem(), 0644));
  fs::rename(fresh, ca, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(ca.string(), " cannot be made: ", error.message()));
}

absl::StatusOr<CertStore::Authorities> CertStore::ReadAuthorities() const {
  fs::path ca = fs::path(dir_) / "ca";
  std::error_code error;
  if (fs::exists(ca / kCurrent, error)) ca /= kCurrent;  // The names beside it may be older.
  const std::string key = ReadSmallFile(ca / "ca.key");
  if (key.empty()) {
    return absl::NotFoundError(absl::StrCat("--dir ", dir_,
                                            ": has no ca/ca.key; `baton certs init` makes a CA"));
  }
  ASSIGN_OR_RETURN(CertificateAuthority issuer,
                   CertificateAuthority::Parse(key, ReadSmallFile(ca / "ca.crt")));
  return Authorities{.issuer = std::move(issuer),
                     .next_key = ReadSmallFile(ca / "next.key"),
                     .next = ReadSmallFile(ca / "next.crt"),
                     .old = ReadSmallFile(ca / "old.crt")};
}

absl::Status CertStore::WriteAuthorities(const std::vector<File>& files, int64_t now_s) const {
  return Switch(dir_ + "/ca", files, now_s);
}

std::string CertStore::RoleDir(TlsRole role) const {
  return absl::StrCat(dir_, "/", RoleWord(role));
}

std::vector<TlsRole> CertStore::Roles() const {
  std::vector<TlsRole> roles;
  for (const TlsRole role : kTlsRoles) {
    std::error_code error;
    if (fs::exists(RoleDir(role), error)) roles.push_back(role);
  }
  return roles;
}

absl::Status CertStore::Issue(const SpiffeId& id, int64_t now_s, int64_t days) const {
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(dir_));
  ASSIGN_OR_RETURN(const Authorities authorities, ReadAuthorities());
  return IssueBy(authorities, id, now_s, days);
}

absl::Status CertStore::IssueBy(const Authorities& authorities, const SpiffeId& id, int64_t now_s,
                                int64_t days) const {
  ASSIGN_OR_RETURN(TlsFiles files, authorities.issuer.Issue(id, now_s, days));
  files.ca_pem = authorities.Bundle();
  return WriteRole(id.role, files, now_s);
}

absl::Status CertStore::WriteRole(TlsRole role, const TlsFiles& files, int64_t now_s) const {
  return Switch(RoleDir(role),
                {{.name = "tls.key", .text = files.key_pem, .mode = 0600},
                 {.name = "tls.crt", .text = files.chain_pem},
                 {.name = "ca.crt", .text = files.ca_pem}},
                now_s);
}

absl::Status CertStore::Switch(const std::string& path, const std::vector<File>& files,
                               int64_t now_s) const {
  const fs::path folder = path;
  RETURN_IF_ERROR(MakeFolder(folder));
  std::error_code error;
  std::string name = absl::StrCat("..", now_s);
  for (int i = 1; fs::exists(folder / name, error); ++i) name = absl::StrCat("..", now_s, ".", i);
  RETURN_IF_ERROR(MakeFolder(folder / name));
  for (const File& file : files) {
    RETURN_IF_ERROR(WriteFile(folder / name / file.name, file.text, file.mode));
  }
  RETURN_IF_ERROR(Link(name, folder / kCurrent));
  for (const File& file : files) {
    if (fs::is_symlink(folder / file.name, error)) continue;
    RETURN_IF_ERROR(Link(absl::StrCat(kCurrent, "/", file.name), folder / file.name));
  }
  // The one before, and what was interrupted.
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const fs::path other = entry.path().filename();
    if (other != name && IsEdition(other)) others.push_back(entry.path());
  }
  for (const fs::path& other : others) fs::remove_all(other, error);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CertStore::RoleFiles>> CertStore::ReadRoles() const {
  std::vector<RoleFiles> roles;
  for (const TlsRole role : Roles()) {
    absl::StatusOr<TlsFiles> files = ReadTlsFiles(RoleDir(role));
    if (!files.ok()) {
      return absl::Status(files.status().code(), absl::StrCat(RoleDir(role), ": ",
                                                              files.status().message()));
    }
    roles.push_back({.role = role, .files = *std::move(files)});
  }
  return roles;
}

absl::StatusOr<std::vector<TlsRole>> CertStore::Renew(bool all, int64_t now_s) const {
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(dir_));
  ASSIGN_OR_RETURN(Authorities authorities, ReadAuthorities());
  ASSIGN_OR_RETURN(const std::vector<RoleFiles> roles, ReadRoles());
  std::vector<SpiffeId> due;
  for (const auto& [role, files] : roles) {
    ASSIGN_OR_RETURN(const TlsIdentity old, CheckAsOfItsTime(files, now_s));
    if (all || old.not_after_s - now_s <= kRenewBeforeEndDays * kDayS) due.push_back(old.id);
  }
  if (all && !authorities.next.empty()) {
    ASSIGN_OR_RETURN(authorities, LetNextIssue(authorities, now_s));
  }
  std::vector<TlsRole> renewed;
  for (const SpiffeId& id : due) {
    RETURN_IF_ERROR(IssueBy(authorities, id, now_s, kLeafDays));
    renewed.push_back(id.role);
  }
  return renewed;
}

absl::StatusOr<CertStore::Authorities> CertStore::LetNextIssue(const Authorities& authorities,
                                                               int64_t now_s) const {
  // Who trusts only the old CA would refuse what the next one issues.
  RETURN_IF_ERROR(CheckBundles(authorities));
  RETURN_IF_ERROR(CertificateAuthority::Parse(authorities.next_key, authorities.next).status());
  RETURN_IF_ERROR(
      WriteAuthorities({{.name = "ca.key", .text = authorities.next_key, .mode = 0600},
                        {.name = "ca.crt", .text = authorities.next},
                        {.name = "old.crt", .text = authorities.issuer.certificate_pem()}},
                       now_s));
  return ReadAuthorities();
}

absl::Status CertStore::CheckBundles(const Authorities& authorities) const {
  ASSIGN_OR_RETURN(const std::vector<RoleFiles> roles, ReadRoles());
  for (const auto& [role, files] : roles) {
    if (files.ca_pem == authorities.Bundle()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(RoleDir(role), "/ca.crt does not name the CAs in ca/: a step of rotate-ca was "
                     "interrupted; give the same step again"));
  }
  return absl::OkStatus();
}

absl::Status CertStore::WriteBundles(const Authorities& authorities, int64_t now_s) const {
  ASSIGN_OR_RETURN(const std::vector<RoleFiles> roles, ReadRoles());
  for (const auto& [role, files] : roles) {
    if (files.ca_pem == authorities.Bundle()) continue;
    TlsFiles next = files;
    next.ca_pem = authorities.Bundle();
    RETURN_IF_ERROR(WriteRole(role, next, now_s));
  }
  return absl::OkStatus();
}

absl::Status CertStore::BeginRotation(int64_t now_s) const {
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(dir_));
  ASSIGN_OR_RETURN(Authorities authorities, ReadAuthorities());
  RETURN_IF_ERROR(ReadRoles().status());  // Before anything changes.
  if (!authorities.old.empty()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--dir ", dir_, ": a rotation is under way, and the new CA issues already; end it by "
        "`baton certs rotate-ca --finish` first"));
  }
  if (!authorities.next.empty() && CheckBundles(authorities).ok()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--dir ", dir_, ": a rotation has begun already; when every server has its new ca.crt, "
        "`baton certs renew --all` is next"));
  }
  if (authorities.next.empty()) {
    ASSIGN_OR_RETURN(const CertificateAuthority next,
                     CertificateAuthority::Make(authorities.issuer.trust_domain(), now_s));
    authorities.next_key = next.key_pem();
    authorities.next = next.certificate_pem();
    RETURN_IF_ERROR(WriteAuthorities(
        {{.name = "ca.key", .text = authorities.issuer.key_pem(), .mode = 0600},
         {.name = "ca.crt", .text = authorities.issuer.certificate_pem()},
         {.name = "next.key", .text = authorities.next_key, .mode = 0600},
         {.name = "next.crt", .text = authorities.next}},
        now_s));
  }
  return WriteBundles(authorities, now_s);
}

absl::Status CertStore::FinishRotation(int64_t now_s) const {
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(dir_));
  ASSIGN_OR_RETURN(Authorities authorities, ReadAuthorities());
  if (!authorities.next.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--dir ", dir_, ": every certificate is of the old CA still; `baton certs renew --all`, "
        "and when every server has its new files, --finish"));
  }
  if (authorities.old.empty() && CheckBundles(authorities).ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--dir ", dir_, ": no rotation is under way; `baton certs rotate-ca --begin` begins one"));
  }
  ASSIGN_OR_RETURN(const std::vector<RoleFiles> roles, ReadRoles());
  for (RoleFiles one : roles) {
    one.files.ca_pem = authorities.issuer.certificate_pem();
    if (CheckAsOfItsTime(one.files, now_s).ok()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(RoleDir(one.role), "/tls.crt is not of the new CA; `baton certs renew --all`, "
                     "and when every server has its new files, --finish"));
  }
  if (!authorities.old.empty()) {
    RETURN_IF_ERROR(WriteAuthorities(
        {{.name = "ca.key", .text = authorities.issuer.key_pem(), .mode = 0600},
         {.name = "ca.crt", .text = authorities.issuer.certificate_pem()}},
        now_s));
    authorities.old.clear();
  }
  return WriteBundles(authorities, now_s);
}

}  // namespace baton::cli
