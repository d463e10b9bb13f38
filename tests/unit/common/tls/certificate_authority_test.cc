#include "common/tls/certificate_authority.h"

#include <gtest/gtest.h>

#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

TEST(CertificateAuthorityTest, ItsLeavesPassTheCheckOfServersForAsLongAsTheyAreValid) {
  const CertificateAuthority authority = NewAuthority();
  for (const TlsRole role : kTlsRoles) {
    const TlsFiles files = NewFiles(authority, IdOf(role));
    const absl::StatusOr<TlsIdentity> taken = CheckTlsFiles(files, kNowS);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->id.ToUri(), IdOf(role).ToUri());
    EXPECT_TRUE(CheckTlsFiles(files, kNowS + kLeafDays * kDayS - 1).ok());
    EXPECT_TRUE(CheckTlsFiles(files, kNowS - kBackdateS + 1).ok());
  }
}

TEST(CertificateAuthorityTest, ComesBackFromItsFilesAndSignsAsBefore) {
  const CertificateAuthority first = NewAuthority();
  const auto again = CertificateAuthority::Parse(first.key_pem(), first.certificate_pem());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->trust_domain(), "test.local");
  TlsFiles files = NewFiles(*again, IdOf(TlsRole::kRouter));
  files.ca_pem = first.certificate_pem();
  EXPECT_TRUE(CheckTlsFiles(files, kNowS).ok());
}

TEST(CertificateAuthorityTest, RefusesAKeyOfAnotherCaAndALeafInItsPlace) {
  const CertificateAuthority one = NewAuthority();
  const CertificateAuthority other = NewAuthority();
  EXPECT_FALSE(CertificateAuthority::Parse(one.key_pem(), other.certificate_pem()).ok());
  EXPECT_FALSE(CertificateAuthority::Parse("", one.certificate_pem()).ok());
  const TlsFiles leaf = NewFiles(one, IdOf(TlsRole::kRouter));
  EXPECT_FALSE(CertificateAuthority::Parse(leaf.key_pem, leaf.chain_pem).ok());
}

TEST(CertificateAuthorityTest, NamesThatWouldBeOthersAreRefused) {
  EXPECT_FALSE(CertificateAuthority::Make("a,URI:spiffe://b", kNowS).ok());
  SpiffeId id = IdOf(TlsRole::kDecode);
  id.release = "x,URI:spiffe://test.local/ns/default/sa/baton";
  EXPECT_FALSE(NewAuthority().Issue(id, kNowS).ok());
}

}  // namespace
}  // namespace baton
