#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace baton::cuda {

// A mapped file that can become shorter.
class ShrinkingFile {
 public:
  explicit ShrinkingFile(const std::vector<std::byte>& content) : size_(content.size()) {
    char path[] = "/tmp/baton-shrinking-XXXXXX";
    fd_ = mkstemp(path);
    EXPECT_GE(fd_, 0);
    unlink(path);
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(size_)), 0);
    EXPECT_EQ(pwrite(fd_, content.data(), size_, 0), static_cast<ssize_t>(size_));
    void* const data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
    EXPECT_NE(data, MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
  }
  ~ShrinkingFile() {
    munmap(data_, size_);
    close(fd_);
  }
  ShrinkingFile(const ShrinkingFile&) = delete;
  ShrinkingFile& operator=(const ShrinkingFile&) = delete;

  const std::byte* data() const { return data_; }
  void ShrinkTo(size_t bytes) { EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0); }

 private:
  size_t size_;
  int fd_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace baton::cuda
