#include "common/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/common/checkpoint/model_dir.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(MappedFileTest, ShowsTheWholeFile) {
  const ModelDir dir;
  dir.Write("f", "hello");
  const auto file = MappedFile::Open(dir.path() + "/f", "f");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto bytes = (*file)->bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "hello");
}

TEST(MappedFileTest, RefusesWhatIsMissingEmptyOrNotAFile) {
  const ModelDir dir;
  dir.Write("empty", "");
  ASSERT_EQ(mkfifo((dir.path() + "/fifo").c_str(), 0600), 0);
  const auto error = [&](const std::string& name) {
    return std::string(MappedFile::Open(dir.path() + "/" + name, name).status().message());
  };
  EXPECT_EQ(error("none"), "none: no such file");
  EXPECT_EQ(error("empty"), "empty: is empty");
  EXPECT_THAT(error("fifo"), HasSubstr("not a regular file"));
  EXPECT_THAT(error("."), HasSubstr("not a regular file"));
}

// Whether the page of `address` is in memory of this process.
bool IsResident(const std::byte* address) {
  const int fd = open("/proc/self/pagemap", O_RDONLY);
  uint64_t entry = 0;
  const auto page = reinterpret_cast<uintptr_t>(address) / sysconf(_SC_PAGESIZE);
  const ssize_t got = pread(fd, &entry, sizeof(entry), static_cast<off_t>(page * sizeof(entry)));
  close(fd);
  return got == sizeof(entry) && (entry >> 63) != 0;
}

TEST(MappedFileTest, ReleasedPagesLeaveMemoryAndReadBackTheSame) {
  const ModelDir dir;
  dir.Write("f", std::string(1 << 20, 'x'));
  const auto file = MappedFile::Open(dir.path() + "/f", "f");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto bytes = (*file)->bytes();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{'x'}), 1 << 20);
  ASSERT_TRUE(IsResident(bytes.data() + (900 << 10)));
  (*file)->Release(bytes.subspan(100, 950 << 10));
  EXPECT_FALSE(IsResident(bytes.data()));
  EXPECT_FALSE(IsResident(bytes.data() + (900 << 10)));
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{'x'}), 1 << 20);
}

TEST(MappedFileTest, MemoryThatIsNotTheFileIsNotReleased) {
  const ModelDir dir;
  dir.Write("f", "hello");
  const auto file = MappedFile::Open(dir.path() + "/f", "f");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<std::byte> mine(1 << 16, std::byte{7});
  (*file)->Release(mine);
  EXPECT_EQ(std::count(mine.begin(), mine.end(), std::byte{7}), 1 << 16);
}

}  // namespace
}  // namespace baton
