#include "router/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;

// SHA-256 of "abc" (FIPS 180-2, appendix B.1) and of "".
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

absl::StatusOr<ApiKeys> LoadText(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/baton-api-keys-test";
  std::ofstream(path) << text;
  return ApiKeys::Load(path);
}

TEST(ApiKeysTest, FindsTheTenantOfAKeyByItsDigest) {
  const auto keys = LoadText(std::string("# keys\n\nalice ") + kAbc + "\nbob " + kEmpty + "\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->TenantOf("Bearer abc"), "alice");
  EXPECT_EQ(keys->TenantOf("Bearer "), "bob");
}

TEST(ApiKeysTest, RefusesEverythingElse) {
  const auto keys = LoadText(std::string("alice ") + kAbc + "\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (const char* value :
       {"", "abc", "Bearer", "Bearer abd", "Bearer abc ", "bearer abc", "Basic abc"}) {
    EXPECT_EQ(keys->TenantOf(value), std::nullopt) << value;
  }
}

TEST(ApiKeysTest, ABadFileIsRefusedByLine) {
  const auto short_digest = LoadText(std::string("alice ") + kAbc + "\nbob 1234\n");
  EXPECT_THAT(std::string(short_digest.status().message()), HasSubstr("line 2"));
  EXPECT_FALSE(LoadText(std::string("alice ") + kAbc + " more\n").ok());
  EXPECT_FALSE(LoadText("# none\n").ok());
  EXPECT_THAT(std::string(ApiKeys::Load("/nonexistent").status().message()),
              HasSubstr("--api-keys-file /nonexistent"));
}

}  // namespace
}  // namespace baton
