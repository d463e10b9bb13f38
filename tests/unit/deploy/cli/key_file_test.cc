#include "deploy/cli/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "router/api_keys.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// SHA-256 of "abc" (FIPS 180-2, appendix B.1).
constexpr char kShaOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class KeyFileTest : public ::testing::Test {
 protected:
  KeyFileTest() {
    std::string name = "/tmp/baton-keys-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = name + "/keys";
  }
  ~KeyFileTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string TenantOf(const std::string& key) const {
    const absl::StatusOr<ApiKeys> keys = ApiKeys::Load(path_);
    EXPECT_TRUE(keys.ok()) << keys.status();
    return keys->Authenticate("Bearer " + key, 0).value_or("");
  }

  std::string folder_;
  std::string path_;
};

TEST_F(KeyFileTest, AddMakesAFileThatTheRouterTakesAndThatDoesNotHoldTheKey) {
  const KeyFile file(path_);
  const auto first = file.Add("alice", {"rate=5/s", "expires=2099-01-01"});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = file.Add("alice", {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(TenantOf(*first), "alice");
  EXPECT_EQ(TenantOf(*second), "alice");
  EXPECT_NE(*first, *second);
  EXPECT_EQ(first->size(), 6u + 43u) << "256 bits in base64";
  EXPECT_THAT(Text(), Not(HasSubstr(*first)));
  const absl::StatusOr<ApiKeys> keys = ApiKeys::Load(path_);
  EXPECT_EQ(keys->limits().at("alice").requests_per_s, 5) << "of both";
  struct stat info{};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(KeyFileTest, AnEditKeepsTheOtherLinesAndALinkStaysOne) {
  Write("# ours\nbob " + std::string(kShaOfAbc));  // Without an end of its last line.
  std::filesystem::rename(path_, folder_ + "/target");
  std::filesystem::create_symlink("target", path_);
  ASSERT_TRUE(KeyFile(path_).Add("alice", {"quota=5/day"}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_THAT(Text(), HasSubstr("# ours\nbob " + std::string(kShaOfAbc) + "\nalice "));
  EXPECT_EQ(TenantOf("abc"), "bob");
}

TEST_F(KeyFileTest, ALinkToNothingIsRefused) {
  std::filesystem::create_symlink("nowhere", path_);
  EXPECT_THAT(std::string(KeyFile(path_).Add("alice", {}).status().message()),
              HasSubstr(path_ + " is a link to nothing"));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
}

TEST_F(KeyFileTest, NoEditMakesAFileThatTheRouterWouldRefuse) {
  const KeyFile file(path_);
  Write("alice " + std::string(kShaOfAbc) + " rate=5/s\n");
  const std::string before = Text();
  const struct {
    const char* tenant;
    std::vector<std::string> options;
    const char* error;
  } cases[] = {{"alice", {"rate=6/s"}, "line 2 gives alice other limits"},
               {"bob", {"rate=x"}, "line 2 has rate=x; allowed: rate=N/s"},
               {"#bob", {}, "a tenant is one word"},
               {"b ob", {}, "a tenant is one word"},
               {"bob\ncarl", {}, "a tenant is one word"},
               {"bob", {"rate=5/s burst=6"}, "a tenant is one word"},
               {"", {}, "a tenant is one word"}};
  for (const auto& each : cases) {
    const absl::Status status = file.Add(each.tenant, each.options).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": ")) << each.tenant;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.error)) << each.tenant;
  }
  EXPECT_THAT(std::string(file.Remove("ba7816bf").message()), HasSubstr("holds no key"));
  EXPECT_EQ(Text(), before);
}

TEST_F(KeyFileTest, RemoveTakesTheOneKeyThatListShows) {
  const KeyFile file(path_);
  Write("alice " + std::string(kShaOfAbc) + " rate=5/s\n# end\n");
  const auto key = file.Add("bob", {});
  const auto listed = file.List();
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_EQ((*listed)[0].tenant, "alice");
  EXPECT_EQ((*listed)[0].id, "ba7816bf8f01");
  EXPECT_EQ((*listed)[0].options, "rate=5/s");
  EXPECT_TRUE(file.Remove("ba7816b").code() == absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsNotFound(file.Remove("00000000000000")));
  ASSERT_TRUE(file.Remove((*listed)[0].id).ok());
  EXPECT_EQ(TenantOf("abc"), "");
  EXPECT_EQ(TenantOf(*key), "bob");
  EXPECT_THAT(Text(), HasSubstr("# end\n"));
}

TEST_F(KeyFileTest, CheckNamesEveryBadLine) {
  Write("alice 12\nbob " + std::string(kShaOfAbc) + "\ncarl " + kShaOfAbc + " burst=1\n");
  const auto problems = KeyFile(path_).Check();
  ASSERT_TRUE(problems.ok()) << problems.status();
  EXPECT_THAT(*problems, ElementsAre(HasSubstr("line 1 "), HasSubstr("line 3 has burst")));
  EXPECT_TRUE(absl::IsNotFound(KeyFile(folder_ + "/none").Check().status()));
}

TEST_F(KeyFileTest, TwoEditsAtOnceAreNotOneLost) {
  Write("alice " + std::string(kShaOfAbc) + "\n");
  std::ofstream(path_ + ".new") << "";
  EXPECT_THAT(std::string(KeyFile(path_).Add("bob", {}).status().message()),
              HasSubstr(".new is there: another `baton keys` runs"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".new")) << "it is the other one's";
}

}  // namespace
}  // namespace baton::cli
