#include "common/model/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "tests/unit/common/model/model_dir.h"

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

}  // namespace
}  // namespace baton
