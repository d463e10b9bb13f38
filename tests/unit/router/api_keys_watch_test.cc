#include "router/api_keys_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;

// SHA-256 of "abc" (FIPS 180-2, appendix B.1) and of "".
constexpr char kShaOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kShaOfNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class ApiKeysWatchTest : public ::testing::Test {
 protected:
  static void Write(const std::string& text) { std::ofstream(Path()) << text; }
  static std::string Path() { return ::testing::TempDir() + "/baton-api-keys-watch-test"; }
  absl::StatusOr<std::unique_ptr<ApiKeysWatch>> Create() {
    return ApiKeysWatch::Create({.path = Path(),
                                 .unix_seconds = [] { return int64_t{1}; },
                                 .on_change = [this](const auto& limits) { on_change_(limits); }});
  }
  // A file is taken when two looks found the same.
  static void PollTwice(ApiKeysWatch& keys) {
    for (int i = 0; i < 2; ++i) keys.Poll();
  }

  std::function<void(const std::map<std::string, TenantLimits>&)> on_change_;
};

TEST_F(ApiKeysWatchTest, AChangedFileIsTakenAndItsLimitsAreToldFirst) {
  Write(std::string("alice ") + kShaOfAbc + "\n");
  const auto keys = Create();
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*(*keys)->Authenticate("Bearer abc"), "alice");
  bool was_known = true;
  on_change_ = [&](const std::map<std::string, TenantLimits>& limits) {
    EXPECT_EQ(limits.at("bob").concurrency, 3);
    was_known = (*keys)->Authenticate("Bearer ").ok();
  };
  Write(std::string("bob ") + kShaOfNothing + " concurrency=3\n");
  PollTwice(**keys);
  EXPECT_FALSE(was_known);
  EXPECT_TRUE((*keys)->Authenticate("Bearer ").ok());
  EXPECT_FALSE((*keys)->Authenticate("Bearer abc").ok()) << "a removed key";
  EXPECT_EQ((*keys)->refused(), 0);
}

TEST_F(ApiKeysWatchTest, OfABadFileNothingIsTakenAndItIsCountedOnce) {
  Write(std::string("alice ") + kShaOfAbc + "\n");
  const auto keys = Create();
  ASSERT_TRUE(keys.ok()) << keys.status();
  on_change_ = [](const auto&) { ADD_FAILURE(); };
  Write(std::string("bob ") + kShaOfNothing + "\nalice 12\n");
  PollTwice(**keys);
  PollTwice(**keys);
  EXPECT_EQ((*keys)->refused(), 1);
  EXPECT_EQ(*(*keys)->Authenticate("Bearer abc"), "alice");
  EXPECT_FALSE((*keys)->Authenticate("Bearer ").ok());
  std::remove(Path().c_str());
  PollTwice(**keys);
  EXPECT_EQ((*keys)->refused(), 2) << "each reason once";
  EXPECT_EQ(*(*keys)->Authenticate("Bearer abc"), "alice");
}

TEST_F(ApiKeysWatchTest, TheFirstLookSaysWhatIsWrong) {
  Write("alice 12\n");
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("line 1"));
  std::remove(Path().c_str());
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("--api-keys-file " + Path()));
}

}  // namespace
}  // namespace baton
