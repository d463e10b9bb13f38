#include "common/tls/server_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& pair_pem, int64_t now_s = kNowS) {
  return std::string(CheckServerPair(pair_pem, now_s).status().message());
}

TEST(ServerPairTest, ALeafAndItsKeyServeUntilItsEnd) {
  const TlsFiles files = NewFiles(NewAuthority(), IdOf(TlsRole::kRouter));
  const TlsFolder folder(files);
  const absl::StatusOr<std::string> pair = ReadServerPair(folder.path());
  ASSERT_TRUE(pair.ok()) << pair.status();
  const absl::StatusOr<int64_t> end_s = CheckServerPair(*pair, kNowS);
  ASSERT_TRUE(end_s.ok()) << end_s.status();
  EXPECT_EQ(*end_s, kNowS + kLeafDays * kDayS);
  EXPECT_THAT(ErrorOf(*pair, *end_s + 1), HasSubstr("tls.crt expired on 2027-"));
  EXPECT_TRUE(absl::IsUnavailable(CheckServerPair(*pair, kNowS - 2 * kBackdateS).status()));
  EXPECT_TRUE(MakeHttpsContext(*pair).ok());
}

TEST(ServerPairTest, WhatDoesNotFitIsNamed) {
  const CertificateAuthority authority = NewAuthority();
  const TlsFiles files = NewFiles(authority, IdOf(TlsRole::kRouter));
  const TlsFiles other = NewFiles(NewAuthority(), IdOf(TlsRole::kRouter));
  const std::string& key = files.key_pem;
  const std::string& leaf = files.chain_pem;
  EXPECT_EQ(ErrorOf(key + leaf + files.ca_pem), "") << "with the CA that issued it";
  EXPECT_THAT(ErrorOf(leaf), HasSubstr("tls.key holds no private key"));
  EXPECT_THAT(ErrorOf(key), HasSubstr("tls.crt holds no certificate"));
  EXPECT_THAT(ErrorOf(key + leaf.substr(0, leaf.size() / 2)), HasSubstr("tls.crt holds no"));
  EXPECT_THAT(ErrorOf(other.key_pem + leaf), HasSubstr("tls.key does not fit tls.crt"));
  EXPECT_THAT(ErrorOf(key + leaf + other.ca_pem), HasSubstr("certificate 2 of tls.crt did not"));
  EXPECT_THAT(ErrorOf(authority.key_pem() + authority.certificate_pem()),
              HasSubstr("tls.crt is not a server's"));
}

TEST(ServerPairTest, AFolderIsReadWithTheNameOfTheFileThatIsAmiss) {
  TlsFolder folder;
  const auto error = [&] {
    return std::string(ReadServerPair(folder.path()).status().message());
  };
  EXPECT_THAT(error(), HasSubstr("tls.key cannot be read; a folder of tls.key and tls.crt"));
  folder.Write(NewFiles(NewAuthority(), IdOf(TlsRole::kRouter)));
  chmod(folder.file("tls.key").c_str(), 0644);
  EXPECT_THAT(error(), HasSubstr("tls.key is open to every user of this machine"));
  chmod(folder.file("tls.key").c_str(), 0640);
  EXPECT_EQ(error(), "");
  std::filesystem::remove(folder.file("tls.crt"));
  EXPECT_THAT(error(), HasSubstr("tls.crt cannot be read"));
}

}  // namespace
}  // namespace baton
