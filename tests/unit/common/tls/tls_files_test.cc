#include "common/tls/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TlsFilesTest : public ::testing::Test {
 protected:
  // The error of the folder as it is, which is one line and tells nothing of the key.
  std::string Error(int64_t now_s = kNowS) const {
    const absl::StatusOr<TlsIdentity> loaded = LoadTlsDir(folder_.path(), now_s);
    if (loaded.ok()) return "";
    const std::string message(loaded.status().message());
    EXPECT_THAT(message, HasSubstr("--tls-dir " + folder_.path()));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_THAT(message, Not(HasSubstr("PRIVATE")));
    return message;
  }

  const CertificateAuthority authority_ = NewAuthority();
  const TlsFiles files_ = NewFiles(authority_, IdOf(TlsRole::kPrefill));
  const TlsFolder folder_{files_};
};

TEST_F(TlsFilesTest, AGoodFolderTellsWhoAndUntilWhen) {
  const absl::StatusOr<TlsIdentity> loaded = LoadTlsDir(folder_.path(), kNowS);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->id.role, TlsRole::kPrefill);
  EXPECT_EQ(loaded->not_after_s, kNowS + kLeafDays * kDayS);
  EXPECT_EQ(loaded->files, files_);
}

TEST_F(TlsFilesTest, EachMissingFileIsNamed) {
  for (const char* name : {"tls.key", "tls.crt", "ca.crt"}) {
    unlink(folder_.file(name).c_str());
    EXPECT_THAT(Error(), HasSubstr(std::string(name) + " cannot be read"));
    folder_.Write(files_);
  }
}

TEST_F(TlsFilesTest, AKeyThatOthersMayOpenIsRefused) {
  for (const mode_t mode : {0604, 0602, 0601, 0644}) {
    chmod(folder_.file("tls.key").c_str(), mode);
    EXPECT_THAT(Error(), HasSubstr("chmod 600")) << mode;
  }
  for (const mode_t mode : {0600, 0400, 0440, 0640}) {  // The group: as Kubernetes mounts it.
    chmod(folder_.file("tls.key").c_str(), mode);
    EXPECT_EQ(Error(), "") << mode;
  }
}

TEST_F(TlsFilesTest, FilesOfTwoEditionsAreRefused) {
  const TlsFiles next = NewFiles(authority_, IdOf(TlsRole::kPrefill));
  folder_.WriteOne("tls.key", next.key_pem);
  EXPECT_THAT(Error(), HasSubstr("tls.key does not fit tls.crt"));
  folder_.WriteOne("tls.crt", next.chain_pem);
  EXPECT_EQ(Error(), "");
}

TEST_F(TlsFilesTest, ALeafOfAnotherCaIsRefusedAlsoUnderTheSameName) {
  folder_.WriteOne("ca.crt", NewAuthority().certificate_pem());
  EXPECT_THAT(Error(), HasSubstr("does not lead to ca.crt"));
  folder_.WriteOne("ca.crt", NewAuthority().certificate_pem() + files_.ca_pem);
  EXPECT_EQ(Error(), "");  // A bundle, while the CA is rotated.
}

TEST_F(TlsFilesTest, DatesAreNamed) {
  EXPECT_THAT(Error(kNowS + kLeafDays * kDayS + 1), HasSubstr("expired on 2027-02-14T"));
  EXPECT_THAT(Error(kNowS - kBackdateS - 1), HasSubstr("not valid before"));
  EXPECT_EQ(LoadTlsDir(folder_.path(), kNowS - kBackdateS - 1).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(TlsFilesTest, HalfWrittenFilesAreRefused) {
  folder_.WriteOne("tls.crt", files_.chain_pem.substr(0, files_.chain_pem.size() / 2));
  EXPECT_THAT(Error(), HasSubstr("tls.crt holds no certificate"));
  folder_.Write(files_);
  folder_.WriteOne("tls.key", files_.key_pem.substr(0, 40));
  EXPECT_THAT(Error(), HasSubstr("tls.key holds no private key"));
  folder_.Write(files_);
  folder_.WriteOne("ca.crt", "");
  EXPECT_THAT(Error(), HasSubstr("ca.crt holds no certificate"));
}

TEST_F(TlsFilesTest, ACertificateWithoutAProcessIsRefused) {
  folder_.WriteOne("tls.key", authority_.key_pem());
  folder_.WriteOne("tls.crt", authority_.certificate_pem());
  EXPECT_THAT(Error(), HasSubstr("is not spiffe://"));
}

TEST(LeadsToTest, OneOfSeveralCasIsEnoughAndDatesAreNot) {
  const CertificateAuthority one = NewAuthority();
  const CertificateAuthority other = NewAuthority();
  const TlsFiles files = NewFiles(one, IdOf(TlsRole::kRouter), kNowS - 400 * kDayS);
  EXPECT_TRUE(LeadsTo(files.chain_pem, one.certificate_pem()));
  EXPECT_TRUE(LeadsTo(files.chain_pem, other.certificate_pem() + one.certificate_pem()));
  EXPECT_FALSE(LeadsTo(files.chain_pem, other.certificate_pem()));
  EXPECT_FALSE(LeadsTo("", one.certificate_pem()));
  EXPECT_FALSE(LeadsTo(files.chain_pem, ""));
}

}  // namespace
}  // namespace baton
