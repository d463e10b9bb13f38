#include "common/rpc/peer_certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr Duration kHandshakeWait = std::chrono::seconds(20);

class PeerCertificateTest : public ::testing::Test {
 protected:
  absl::StatusOr<int64_t> Ask(const TlsParty& asker, TlsRole server) const {
    return AskCertificateEnd(worker_.address(), server, *asker.tls, kHandshakeWait);
  }

  const CertificateAuthority authority_ = NewAuthority("test.local", UnixSeconds());
  const TlsWorker worker_{authority_, Role::kDecode};
};

TEST_F(PeerCertificateTest, TellsTheEndOfTheLeafThatTheServerShows) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const int64_t end = worker_.party.tls->current()->not_after_s;
  EXPECT_GT(end, UnixSeconds());
  EXPECT_EQ(Ask(admin, TlsRole::kDecode).value(), end);
}

TEST_F(PeerCertificateTest, SaysWhoIsNotWhoItShouldBe) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const absl::Status misled = Ask(admin, TlsRole::kPrefill).status();
  EXPECT_TRUE(absl::IsUnauthenticated(misled)) << misled;
  EXPECT_THAT(misled.message(), HasSubstr("role decode where prefill"));
  const CertificateAuthority other = NewAuthority("test.local", UnixSeconds());
  const TlsParty stranger(other, TlsRole::kAdmin);
  EXPECT_TRUE(absl::IsUnavailable(Ask(stranger, TlsRole::kDecode).status()));
}

TEST_F(PeerCertificateTest, NobodyThereIsAnErrorWithinTheLimit) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const auto none = AskCertificateEnd("127.0.0.1:1", TlsRole::kDecode, *admin.tls, kHandshakeWait);
  EXPECT_TRUE(absl::IsUnavailable(none.status())) << none.status();
}

}  // namespace
}  // namespace baton
