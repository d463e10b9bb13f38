#include "deploy/cli/cert_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "common/tls/tls_files.h"
#include "tests/unit/common/tls/tls_folder.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CertStoreTest : public ::testing::Test {
 protected:
  SpiffeId Id(TlsRole role) const {
    return {.name_space = "n", .release = "r", .role = role};
  }
  TlsIdentity Load(TlsRole role, int64_t now_s = kNowS) const {
    absl::StatusOr<TlsIdentity> loaded = LoadTlsDir(store_.RoleDir(role), now_s);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : TlsIdentity();
  }

  const TlsFolder folder_;
  const CertStore store_{folder_.path() + "/certs"};
};

TEST_F(CertStoreTest, WhatItIssuesIsATlsDir) {
  ASSERT_TRUE(store_.Init("t.local", kNowS).ok());
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kDecode), kNowS).ok());
  EXPECT_EQ(Load(TlsRole::kDecode).id.ToUri(), "spiffe://t.local/ns/n/sa/r-decode");
  struct stat info{};
  ASSERT_EQ(stat((folder_.path() + "/certs/ca/ca.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(CertStoreTest, ASecondCaIsRefusedAndTheFirstStays) {
  ASSERT_TRUE(store_.Init("t.local", kNowS).ok());
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kRouter), kNowS).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store_.Init("t.local", kNowS)));
  const std::string ca = Load(TlsRole::kRouter).files.ca_pem;
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kRouter), kNowS).ok());
  EXPECT_EQ(Load(TlsRole::kRouter).files.ca_pem, ca);
}

TEST_F(CertStoreTest, WithoutACaItSaysHowToMakeOne) {
  const absl::Status status = store_.Issue(Id(TlsRole::kRouter), kNowS);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("baton certs init"));
}

TEST_F(CertStoreTest, RenewsFromDayTwentyOnUnderTheSameNameAndKeepsNoOldKey) {
  ASSERT_TRUE(store_.Init("t.local", kNowS).ok());
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kDecode), kNowS).ok());
  const TlsIdentity first = Load(TlsRole::kDecode);
  const int64_t day_20 = kNowS + 20 * kDayS;
  EXPECT_THAT(*store_.Renew(false, day_20 - 1), IsEmpty());
  EXPECT_EQ(Load(TlsRole::kDecode).files, first.files);
  EXPECT_THAT(*store_.Renew(false, day_20), ElementsAre(TlsRole::kDecode));
  const TlsIdentity second = Load(TlsRole::kDecode, day_20);
  EXPECT_EQ(second.id.ToUri(), first.id.ToUri());
  EXPECT_NE(second.files.key_pem, first.files.key_pem);
  EXPECT_EQ(second.not_after_s, day_20 + kLeafDays * kDayS);
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(store_.RoleDir(TlsRole::kDecode))) {
    folders += entry.is_directory() && !entry.is_symlink();
  }
  EXPECT_EQ(folders, 1);
}

TEST_F(CertStoreTest, RenewsWhatHasExpired) {
  ASSERT_TRUE(store_.Init("t.local", kNowS).ok());
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kAdmin), kNowS).ok());
  const int64_t later = kNowS + 100 * kDayS;
  EXPECT_THAT(*store_.Renew(false, later), ElementsAre(TlsRole::kAdmin));
  EXPECT_EQ(Load(TlsRole::kAdmin, later).not_after_s, later + kLeafDays * kDayS);
}

TEST_F(CertStoreTest, ALinkThatLeadsElsewhereIsReplacedAndNothingBehindItRemoved) {
  namespace fs = std::filesystem;
  ASSERT_TRUE(store_.Init("t.local", kNowS).ok());
  const fs::path role = store_.RoleDir(TlsRole::kDecode);
  const fs::path precious = fs::path(folder_.path()) / "precious";
  for (const fs::path& target : {precious, fs::path("../../precious")}) {
    fs::create_directories(precious / "inner");
    fs::create_directories(role);
    fs::remove(role / "..data");
    fs::create_symlink(target, role / "..data");
    ASSERT_TRUE(store_.Issue(Id(TlsRole::kDecode), kNowS).ok());
    EXPECT_TRUE(fs::exists(precious / "inner")) << target;
    EXPECT_EQ(Load(TlsRole::kDecode).id.role, TlsRole::kDecode);
  }
}

TEST_F(CertStoreTest, ACaThatCouldNotBeWrittenIsMadeTheNextTime) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit little{.rlim_cur = 300, .rlim_max = before.rlim_max};  // A key, no certificate.
  setrlimit(RLIMIT_FSIZE, &little);
  const absl::Status failed = store_.Init("t.local", kNowS);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(failed.ok());
  EXPECT_TRUE(absl::IsNotFound(store_.Issue(Id(TlsRole::kRouter), kNowS)));
  EXPECT_TRUE(store_.Init("t.local", kNowS).ok());
  EXPECT_TRUE(store_.Issue(Id(TlsRole::kRouter), kNowS).ok());
}

}  // namespace
}  // namespace baton::cli
