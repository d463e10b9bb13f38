#include "router/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// SHA-256 of "abc" (FIPS 180-2, appendix B.1) and of "".
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

constexpr int64_t kNowS = 1'800'000'000;  // 2027-01-15T08:00:00Z.

absl::StatusOr<ApiKeys> LoadText(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/baton-api-keys-test";
  std::ofstream(path) << text;
  return ApiKeys::Load(path);
}

TEST(ApiKeysTest, FindsTheTenantOfAKeyByItsDigest) {
  const auto keys = LoadText(std::string("# keys\n\nalice ") + kAbc + "\nbob " + kEmpty + "\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys->Authenticate("Bearer abc", kNowS), "alice");
  EXPECT_EQ(*keys->Authenticate("Bearer ", kNowS), "bob");
}

TEST(ApiKeysTest, TheSchemeIsAnyCase) {
  const auto keys = LoadText(std::string("alice ") + kAbc + "\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (const char* value : {"bearer abc", "BEARER abc", "bEARER abc"}) {
    EXPECT_EQ(keys->Authenticate(value, kNowS).value_or(""), "alice") << value;
  }
}

// Whoever opens a FIFO without a writer waits for one.
TEST(ApiKeysTest, WhatIsNoRegularFileIsRefusedByNameAndALinkIsFollowed) {
  const std::string folder = ::testing::TempDir() + "/baton-api-keys-kinds";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/directory");
  ASSERT_EQ(mkfifo((folder + "/fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("fifo", folder + "/link-to-fifo");
  for (const std::string& path : {folder + "/fifo", folder + "/link-to-fifo", folder + "/directory",
                                  std::string("/dev/zero")}) {
    const absl::Status status = ApiKeys::Load(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": is no regular file"));
  }
  std::ofstream(folder + "/file") << "alice " << kAbc << "\n";
  std::filesystem::create_symlink("file", folder + "/link");
  EXPECT_TRUE(ApiKeys::Load(folder + "/link").ok());
  EXPECT_TRUE(absl::IsNotFound(ApiKeys::Load(folder + "/nothing").status()));
}

TEST(ApiKeysTest, RefusesEverythingElse) {
  const auto keys = LoadText(std::string("alice ") + kAbc + "\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (const char* value :
       {"", "abc", "Bearer", "Bearer abd", "Bearer abc ", "Bearer ABC", "Bearerabc", "Basic abc"}) {
    EXPECT_TRUE(absl::IsUnauthenticated(keys->Authenticate(value, kNowS).status())) << value;
  }
}

TEST(ApiKeysTest, LimitsStandBehindTheKeyAndBelongToTheTenant) {
  const std::string line = std::string("alice ") + kAbc + " rate=0.5/s tokens=6000/min";
  const auto keys = LoadText(line + " concurrency=3 weight=4 max_priority=-7\nbob " + kEmpty +
                             "\ncarl " + std::string(64, '0') + " rate=20/s burst=50\n");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->limits().at("alice"), (TenantLimits{.requests_per_s = 0.5,
                                                      .burst = 1,
                                                      .tokens_per_min = 6000,
                                                      .concurrency = 3,
                                                      .weight = 4,
                                                      .max_priority = -7}));
  EXPECT_EQ(keys->limits().at("bob"), TenantLimits());
  EXPECT_EQ(keys->limits().at("carl").burst, 50);
  const auto two = LoadText(line + "\nalice " + kEmpty + " tokens=6000/min rate=0.5/s\n");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->limits().size(), 1u);
}

TEST(ApiKeysTest, AKeyEndsWithItsDateAndTheTenantsOtherKeyDoesNot) {
  for (const char* date : {"2027-01-15T08:00:00Z", "2027-01-15T09:30:00+01:30"}) {
    const auto keys = LoadText(std::string("alice ") + kAbc + " quota=500/day expires=" + date +
                               "\nalice " + kEmpty + " quota=500/day expires=2027-01-16\n");
    ASSERT_TRUE(keys.ok()) << keys.status();
    EXPECT_EQ(keys->limits().at("alice").tokens_per_day, 500);
    EXPECT_EQ(*keys->Authenticate("Bearer abc", kNowS - 1), "alice");
    const absl::Status expired = keys->Authenticate("Bearer abc", kNowS).status();
    EXPECT_TRUE(absl::IsUnauthenticated(expired));
    EXPECT_THAT(std::string(expired.message()), HasSubstr("expired on 2027-01-15T08:00:00Z"));
    EXPECT_EQ(*keys->Authenticate("Bearer ", kNowS), "alice");
    EXPECT_EQ(*keys->Authenticate("Bearer ", kNowS + 16 * 3600 - 1), "alice");
    EXPECT_FALSE(keys->Authenticate("Bearer ", kNowS + 16 * 3600).ok());
  }
}

TEST(ApiKeysTest, AllBadLinesAreTold) {
  const std::string good = std::string("alice ") + kAbc + "\n";
  EXPECT_THAT(ApiKeys::Problems(good), ElementsAre());
  EXPECT_THAT(ApiKeys::Problems(good + "bob 12\n# 13\n\nalice " + kEmpty + " rate=1/s\n"),
              ElementsAre(HasSubstr("line 2 is not TENANT and 64 hex digits"),
                          HasSubstr("line 5 gives alice other limits than a line before")));
  EXPECT_THAT(ApiKeys::Problems(""), ElementsAre(HasSubstr("holds no key")));
}

TEST(ApiKeysTest, AKeyIsOneTenants) {
  const std::string alice = std::string("alice ") + kAbc;
  EXPECT_THAT(ApiKeys::Problems(alice + "\n" + alice + "\n"), ElementsAre());
  for (const std::string& other : {std::string("bob ") + kAbc, alice + " expires=2027-01-31"}) {
    EXPECT_THAT(ApiKeys::Problems(alice + "\n" + other + "\n"),
                ElementsAre(HasSubstr("line 2 has the key of a line before")));
  }
}

TEST(ApiKeysTest, ATenantThatWorkersWouldRefuseIsRefused) {
  for (const char* name : {"al\x1bice", "alice\x7f",
                           "\xef\xbb\xbf"
                           "alice"}) {
    EXPECT_THAT(ApiKeys::Problems(std::string(name) + " " + kAbc),
                ElementsAre(HasSubstr("line 1 has a tenant with control characters")));
  }
  EXPECT_THAT(ApiKeys::Problems(std::string("Ж/x:y ") + kAbc), ElementsAre());
}

TEST(ApiKeysTest, ABadLimitIsRefusedByLineValueAndCure) {
  const struct {
    const char* words;
    const char* error;
  } cases[] = {{"more", "line 1 has more; a key's line takes rate, burst, tokens"},
               {"rate=5", "has rate=5; allowed: rate=N/s"},
               {"rate=0/s", "rate=N/s, N  from 0.001 to 1e+06"},
               {"rate=nan/s", "allowed: rate=N/s"},
               {"rate=inf/s", "allowed: rate=N/s"},
               {"rate=/s", "allowed: rate=N/s"},
               {"burst=2", "has burst without rate"},
               {"rate=1/s rate=2/s", "has rate=2/s beside another"},
               {"tokens=1.5/min", "allowed: tokens=N/min, N whole, from 1"},
               {"tokens=-1/min", "allowed: tokens=N/min"},
               {"concurrency=0", "allowed: concurrency=N"},
               {"weight=0", "allowed: weight=N, N whole, from 1 to 1000"},
               {"weight=1001", "allowed: weight=N"},
               {"quota=0/day", "allowed: quota=N/day"},
               {"quota=5/min", "has quota=5/min; allowed: quota=N/day, N whole, from 1"},
               {"expires=2027-02-30", "has expires=2027-02-30; allowed: expires=YYYY-MM-DD"},
               {"expires=2027-1-1", "allowed: expires=YYYY-MM-DD"},
               {"expires=infinite-future", "allowed: expires=YYYY-MM-DD"},
               {"expires=2027-01-01T10:00", "allowed: expires=YYYY-MM-DD"},
               {"expires=", "allowed: expires=YYYY-MM-DD"},
               {"expires", "allowed: expires=YYYY-MM-DD"},
               {"expires=2027-01-01 expires=2028-01-01", "beside another"},
               {"max_priority=3000000000", "allowed: max_priority=N"}};
  for (const auto& each : cases) {
    const auto keys = LoadText(std::string("alice ") + kAbc + " " + each.words + "\n");
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr(each.error)) << each.words;
  }
  const std::string line = std::string("alice ") + kAbc;
  EXPECT_THAT(std::string(LoadText(line + "\n" + line + " rate=1/s\n").status().message()),
              HasSubstr("line 2 gives alice other limits than a line before"));
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
