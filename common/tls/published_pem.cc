#include "common/tls/published_pem.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {
namespace {

absl::Status WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote <= 0) return absl::ErrnoToStatus(errno, "cannot hold certificates in memory");
    done += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PublishedPem>> PublishedPem::Create(const std::string& text) {
  std::unique_ptr<PublishedPem> made(new PublishedPem);
  RETURN_IF_ERROR(made->Publish(text));
  return made;
}

PublishedPem::~PublishedPem() {
  if (fd_ >= 0) close(fd_);
}

absl::Status PublishedPem::Publish(const std::string& text) {
  const int fresh = memfd_create("baton-tls", MFD_CLOEXEC);
  if (fresh < 0) return absl::ErrnoToStatus(errno, "cannot hold certificates in memory");
  absl::Status status = WriteAll(fresh, text);
  const timespec time{.tv_sec = ++edition_, .tv_nsec = 0};
  const timespec times[2] = {time, time};
  if (status.ok() && futimens(fresh, times) != 0) status = absl::ErrnoToStatus(errno, "futimens");
  if (status.ok() && fd_ < 0) {
    fd_ = fresh;
    return status;
  }
  if (status.ok() && dup3(fresh, fd_, O_CLOEXEC) < 0) status = absl::ErrnoToStatus(errno, "dup3");
  close(fresh);
  return status;
}

std::string PublishedPem::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

}  // namespace baton
