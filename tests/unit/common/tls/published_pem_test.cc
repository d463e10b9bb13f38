#include "common/tls/published_pem.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

namespace baton {
namespace {

std::string Content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

time_t ModifiedAt(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mtime;
}

TEST(PublishedPemTest, ThePathStaysAndItsContentIsReplaced) {
  const auto made = PublishedPem::Create("first");
  ASSERT_TRUE(made.ok());
  const std::string path = (*made)->path();
  EXPECT_EQ(Content(path), "first");
  const time_t first = ModifiedAt(path);
  std::ifstream reader(path);  // Who has opened it goes on with what he opened.
  ASSERT_TRUE((*made)->Publish("2").ok());
  EXPECT_EQ((*made)->path(), path);
  EXPECT_EQ(Content(path), "2");
  EXPECT_NE(ModifiedAt(path), first);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "first");
}

TEST(PublishedPemTest, NothingIsLeftOfIt) {
  std::string path;
  {
    const auto made = PublishedPem::Create("secret");
    ASSERT_TRUE(made.ok());
    path = (*made)->path();
  }
  EXPECT_FALSE(std::ifstream(path).is_open());
}

}  // namespace
}  // namespace baton
