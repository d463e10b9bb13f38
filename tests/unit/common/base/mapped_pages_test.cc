#include "common/base/mapped_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "tests/unit/common/base/populating_kernel.h"

namespace baton {
namespace {

// Of three pages and a few bytes, mapped.
class MappedPagesTest : public testing::Test {
 protected:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kSize = 3 * kPage + 5;

  void SetUp() override {
    if (sysconf(_SC_PAGESIZE) != kPage) GTEST_SKIP() << "pages of another size";
    char path[] = "/tmp/baton-mapped-pages-XXXXXX";
    fd_ = mkstemp(path);
    ASSERT_GE(fd_, 0);
    unlink(path);
    ASSERT_EQ(ftruncate(fd_, kSize), 0);
    void* const data = mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE, fd_, 0);
    ASSERT_NE(data, MAP_FAILED);
    bytes_ = {static_cast<const std::byte*>(data), kSize};
  }
  void TearDown() override {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), kSize);
    if (fd_ >= 0) close(fd_);
  }
  std::vector<bool> Resident() const {
    unsigned char pages[4] = {};
    EXPECT_EQ(mincore(const_cast<std::byte*>(bytes_.data()), kSize, pages), 0);
    return {(pages[0] & 1) != 0, (pages[1] & 1) != 0, (pages[2] & 1) != 0, (pages[3] & 1) != 0};
  }

  int fd_ = -1;
  std::span<const std::byte> bytes_;
};

TEST_F(MappedPagesTest, PagesOfAnyPartCanBeReadThen) {
  EXPECT_TRUE(TouchPages({}).ok());
  EXPECT_TRUE(TouchPages(bytes_.subspan(kPage + 7, 3)).ok());
  EXPECT_TRUE(TouchPages(bytes_).ok());
  for (const bool resident : Resident()) EXPECT_TRUE(resident);
  for (const std::byte byte : bytes_) ASSERT_EQ(byte, std::byte{0});
  const std::vector<std::byte> heap(3 * kPage);
  EXPECT_TRUE(TouchPages(heap).ok());
}

TEST_F(MappedPagesTest, AFileThatHasBecomeShorterIsAnErrorAndNoSignal) {
  if (!KernelFindsUnreadablePages()) GTEST_SKIP() << "a kernel without MADV_POPULATE_READ";
  const absl::Status whole = TouchPages(bytes_);
  ASSERT_TRUE(whole.ok()) << whole;
  ASSERT_EQ(ftruncate(fd_, kPage), 0);
  const absl::Status status = TouchPages(bytes_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(),
            "12293 bytes of a mapped file cannot be read: it has become shorter, "
            "or its disk fails");
  EXPECT_TRUE(TouchPages(bytes_.first(kPage)).ok());
}

}  // namespace
}  // namespace baton
