#include "common/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path,
                                                             const std::string& name) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(name, ": no such file"));
    return absl::InvalidArgumentError(absl::StrCat(name, ": cannot open: ", strerror(errno)));
  }
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a regular file"));
  }
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(name, ": is empty"));
  const auto size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": cannot map: ", strerror(errno)));
  }
  return std::unique_ptr<MappedFile>(new MappedFile({static_cast<const std::byte*>(data), size}));
}

void MappedFile::Release(std::span<const std::byte> part) const {
  const std::byte* end = bytes_.data() + bytes_.size();
  if (part.data() < bytes_.data() || part.data() >= end) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // A mapping begins at a page.
  const size_t begin = static_cast<size_t>(part.data() - bytes_.data()) / page * page;
  const auto last = static_cast<size_t>(std::min(part.data() + part.size(), end) - bytes_.data());
  madvise(const_cast<std::byte*>(bytes_.data()) + begin, last - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace baton
