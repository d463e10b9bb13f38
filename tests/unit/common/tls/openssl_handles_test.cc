#include "common/tls/openssl_handles.h"

#include <gtest/gtest.h>

#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

TEST(OpensslHandlesTest, KeysAndCertificatesComeBackFromPem) {
  const CertificateAuthority authority = NewAuthority();
  const KeyPtr key = ParseKey(authority.key_pem());
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(ToPem(key.get()), authority.key_pem());
  const std::string pem = authority.certificate_pem();
  const std::vector<CertPtr> both = ParseCertificates(pem + pem);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(ToPem(both[1].get()), pem);
}

TEST(OpensslHandlesTest, ADamagedCertificateVoidsTheList) {
  const std::string pem = NewAuthority().certificate_pem();
  std::string damaged = pem;
  damaged[damaged.size() / 2] = '!';
  EXPECT_TRUE(ParseCertificates(pem + damaged).empty());
  EXPECT_TRUE(ParseCertificates(pem.substr(0, pem.size() / 2)).empty());
  EXPECT_TRUE(ParseCertificates("").empty());
  EXPECT_EQ(ParseKey(pem), nullptr);
}

TEST(OpensslHandlesTest, DatesAreSecondsSince1970) {
  const CertificateAuthority authority = NewAuthority();
  const TlsFiles files = NewFiles(authority, IdOf(TlsRole::kDecode));
  const std::vector<CertPtr> chain = ParseCertificates(files.chain_pem);
  ASSERT_EQ(chain.size(), 1u);
  EXPECT_EQ(NotBefore(chain[0].get()), kNowS - kBackdateS);
  EXPECT_EQ(NotAfter(chain[0].get()), kNowS + kLeafDays * kDayS);
  EXPECT_EQ(UrisOf(chain[0].get()),
            std::vector<std::string>{"spiffe://test.local/ns/default/sa/baton-decode"});
}

}  // namespace
}  // namespace baton
