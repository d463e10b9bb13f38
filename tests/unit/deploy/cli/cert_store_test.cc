#include "deploy/cli/cert_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

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

// A store amid the rotation of its CA.
class RotationTest : public CertStoreTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(store_.Init("t.local", kNowS).ok());
    for (const TlsRole role : {TlsRole::kRouter, TlsRole::kDecode}) {
      ASSERT_TRUE(store_.Issue(Id(role), kNowS).ok());
    }
  }
  std::string CaFile(const std::string& name) const {
    std::ifstream in(folder_.path() + "/certs/ca/" + name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Whether what `role` presents leads to a CA that `peer` trusts.
  bool Trusts(const TlsFiles& peer, const TlsFiles& role) const {
    TlsFiles mixed = role;
    mixed.ca_pem = peer.ca_pem;
    return CheckTlsFiles(mixed, kNowS).ok();
  }
  TlsFiles Files(TlsRole role) const { return Load(role).files; }
};

TEST_F(RotationTest, EachStepsFilesAreTrustedByThoseOfTheStepBefore) {
  const std::string old_ca = CaFile("ca.crt");
  std::vector<TlsFiles> steps = {Files(TlsRole::kRouter)};
  ASSERT_TRUE(store_.BeginRotation(kNowS).ok());
  steps.push_back(Files(TlsRole::kRouter));
  EXPECT_THAT(*store_.Renew(true, kNowS), ElementsAre(TlsRole::kRouter, TlsRole::kDecode));
  steps.push_back(Files(TlsRole::kRouter));
  ASSERT_TRUE(store_.FinishRotation(kNowS).ok());
  steps.push_back(Files(TlsRole::kRouter));
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_TRUE(Trusts(steps[i - 1], steps[i])) << i;
    EXPECT_TRUE(Trusts(steps[i], steps[i - 1])) << i;
  }
  EXPECT_EQ(steps[1].key_pem, steps[0].key_pem);
  EXPECT_FALSE(Trusts(steps[3], steps[0]));
  EXPECT_FALSE(Trusts(steps[0], steps[3]));
  EXPECT_EQ(steps[3].ca_pem, CaFile("ca.crt"));
  EXPECT_NE(steps[3].ca_pem, old_ca);
  EXPECT_EQ(Files(TlsRole::kDecode).ca_pem, steps[3].ca_pem);
}

TEST_F(RotationTest, WhatIsIssuedMeanwhileIsOfTheCaOfTheStepAndTrustsBoth) {
  const TlsFiles before = Files(TlsRole::kRouter);
  ASSERT_TRUE(store_.BeginRotation(kNowS).ok());
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kPrefill), kNowS).ok());
  EXPECT_THAT(*store_.Renew(false, kNowS), IsEmpty());
  EXPECT_TRUE(Trusts(before, Files(TlsRole::kPrefill)));  // Who has not its bundle yet takes it.
  EXPECT_EQ(Files(TlsRole::kPrefill).ca_pem, Files(TlsRole::kRouter).ca_pem);
  ASSERT_TRUE(store_.Renew(true, kNowS).ok());
  ASSERT_TRUE(store_.Issue(Id(TlsRole::kAdmin), kNowS).ok());
  EXPECT_FALSE(Trusts(before, Files(TlsRole::kAdmin)));
  EXPECT_TRUE(Trusts(Files(TlsRole::kAdmin), before));
}

TEST_F(RotationTest, ASecondOneAndStepsOutOfOrderAreRefusedAndChangeNothing) {
  EXPECT_TRUE(absl::IsFailedPrecondition(store_.FinishRotation(kNowS)));
  ASSERT_TRUE(store_.BeginRotation(kNowS).ok());
  TlsFiles files = Files(TlsRole::kRouter);
  EXPECT_TRUE(absl::IsAlreadyExists(store_.BeginRotation(kNowS)));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_.FinishRotation(kNowS)));
  EXPECT_EQ(Files(TlsRole::kRouter), files);
  ASSERT_TRUE(store_.Renew(true, kNowS).ok());
  files = Files(TlsRole::kRouter);
  EXPECT_TRUE(absl::IsAlreadyExists(store_.BeginRotation(kNowS)));
  EXPECT_EQ(Files(TlsRole::kRouter), files);
  ASSERT_TRUE(store_.FinishRotation(kNowS).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_.FinishRotation(kNowS)));
  EXPECT_TRUE(store_.BeginRotation(kNowS).ok());
}

TEST_F(RotationTest, TheOldCaStaysWhileALeafOfItIsInUse) {
  ASSERT_TRUE(store_.BeginRotation(kNowS).ok());
  const TlsFiles old = Files(TlsRole::kDecode);
  ASSERT_TRUE(store_.Renew(true, kNowS).ok());
  const std::string leaf = store_.RoleDir(TlsRole::kDecode) + "/..data/";
  std::ofstream(leaf + "tls.crt") << old.chain_pem;
  std::ofstream(leaf + "tls.key") << old.key_pem;
  const absl::Status status = store_.FinishRotation(kNowS);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("decode/tls.crt"));
  EXPECT_TRUE(Trusts(Files(TlsRole::kRouter), old));
}

TEST_F(RotationTest, AStepThatWasInterruptedAnywhereIsDoneByTheSameStepOnceMore) {
  namespace fs = std::filesystem;
  // A folder that cannot be replaced stops a step there; nothing is left of the step after it.
  const auto interrupt_at = [this](const fs::path& folder, auto step) {
    const fs::path blocked = folder / "..data.new";  // The link that Switch makes first.
    fs::create_directories(blocked / "full");
    EXPECT_FALSE(step()) << folder;
    fs::remove_all(blocked);
    for (const TlsRole role : store_.Roles()) {  // Both sides go on meanwhile.
      EXPECT_TRUE(Trusts(Files(TlsRole::kRouter), Files(role)));
      EXPECT_TRUE(Trusts(Files(role), Files(TlsRole::kRouter)));
    }
  };
  const fs::path ca = folder_.path() + "/certs/ca";
  const fs::path folders[] = {ca, store_.RoleDir(TlsRole::kRouter),
                              store_.RoleDir(TlsRole::kDecode)};
  const auto begin = [this] { return store_.BeginRotation(kNowS).ok(); };
  const auto renew = [this] { return store_.Renew(true, kNowS).ok(); };
  const auto finish = [this] { return store_.FinishRotation(kNowS).ok(); };
  for (const fs::path& folder : folders) interrupt_at(folder, begin);
  EXPECT_FALSE(renew());  // Not every role knows the next CA.
  EXPECT_TRUE(begin());
  for (const fs::path& folder : folders) interrupt_at(folder, renew);
  EXPECT_FALSE(finish());
  EXPECT_TRUE(renew());
  for (const fs::path& folder : folders) interrupt_at(folder, finish);
  EXPECT_TRUE(finish());
  for (const fs::path& folder : folders) {
    int editions = 0;  // Nothing is left of what was interrupted.
    for (const auto& entry : fs::directory_iterator(folder)) {
      editions += entry.is_directory() && !entry.is_symlink();
    }
    EXPECT_EQ(editions, 1) << folder;
  }
  EXPECT_EQ(Files(TlsRole::kDecode).ca_pem, CaFile("ca.crt"));
  EXPECT_EQ(Files(TlsRole::kRouter).ca_pem, CaFile("ca.crt"));
}

TEST_F(RotationTest, TwoAtOnceAreRefused) {
  const int other = open((folder_.path() + "/certs").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_TRUE(absl::IsUnavailable(store_.BeginRotation(kNowS)));
  EXPECT_TRUE(absl::IsUnavailable(store_.Renew(true, kNowS).status()));
  EXPECT_TRUE(absl::IsUnavailable(store_.FinishRotation(kNowS)));
  EXPECT_TRUE(absl::IsUnavailable(store_.Issue(Id(TlsRole::kAdmin), kNowS)));
  close(other);
  EXPECT_TRUE(store_.BeginRotation(kNowS).ok());
}

TEST_F(RotationTest, NoOldKeyIsKept) {
  ASSERT_TRUE(store_.BeginRotation(kNowS).ok());
  const std::string old_key = CaFile("ca.key");
  ASSERT_TRUE(store_.Renew(true, kNowS).ok());
  ASSERT_TRUE(store_.FinishRotation(kNowS).ok());
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder_.path() + "/certs")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    const std::string text(std::istreambuf_iterator<char>(in), {});
    EXPECT_NE(text, old_key) << entry.path();
  }
}

}  // namespace
}  // namespace baton::cli
