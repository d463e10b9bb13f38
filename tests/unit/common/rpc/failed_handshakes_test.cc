#include "common/rpc/failed_handshakes.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

// How many of each kind have failed so far.
struct Counts {
  int64_t ca = CountFailedHandshakes().ca;
  int64_t expired = CountFailedHandshakes().expired;
  int64_t handshake = CountFailedHandshakes().handshake;
};

// The kind of which there are more after a call by these credentials; a try or two of a client.
std::string KindOf(const TlsWorker& worker,
                   const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  const Counts before;
  EXPECT_EQ(CallMethod(worker.address(), credentials, "/baton.v1.Cluster/Hello"),
            grpc::StatusCode::UNAVAILABLE);
  const Time limit = SteadyNow() + std::chrono::seconds(60);
  std::string kinds;
  while (kinds.empty() && SteadyNow() < limit) {
    const Counts now;
    if (now.ca > before.ca) kinds += "ca";
    if (now.expired > before.expired) kinds += "expired";
    if (now.handshake > before.handshake) kinds += "handshake";
  }
  return kinds;
}

TEST(FailedHandshakesTest, AreCountedByWhatThePeerHasShown) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const CertificateAuthority other = NewAuthority("test.local", UnixSeconds());
  const TlsWorker worker(authority, Role::kDecode);
  const auto by = [&](const CertificateAuthority& issuer, int64_t now_s) {
    return AnyServer(NewFiles(issuer, IdOf(TlsRole::kRouter), now_s), authority.certificate_pem());
  };
  EXPECT_EQ(KindOf(worker, by(other, UnixSeconds())), "ca");
  EXPECT_EQ(KindOf(worker, by(authority, UnixSeconds() - (kLeafDays + 1) * kDayS)), "expired");
  EXPECT_EQ(KindOf(worker, by(authority, UnixSeconds() + 2 * kBackdateS)), "expired");
  EXPECT_EQ(KindOf(worker, AnyServer({}, authority.certificate_pem())), "handshake");
  EXPECT_EQ(KindOf(worker, grpc::InsecureChannelCredentials()), "handshake");
}

TEST(FailedHandshakesTest, AreNotThoseThatCameThrough) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const TlsWorker worker(authority, Role::kDecode);
  const Counts before;
  for (const TlsRole role : kTlsRoles) {
    CallMethod(worker.address(),
               AnyServer(NewFiles(authority, IdOf(role), UnixSeconds()),
                         authority.certificate_pem()),
               "/baton.v1.Cluster/Hello");
  }
  const Counts now;
  EXPECT_EQ(now.ca, before.ca);
  EXPECT_EQ(now.expired, before.expired);
  EXPECT_EQ(now.handshake, before.handshake);
}

TEST(FailedHandshakesTest, OfAClientAreThoseThatItRefusedItself) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const CertificateAuthority other = NewAuthority("test.local", UnixSeconds());
  const TlsWorker worker(authority, Role::kDecode);
  const TlsParty router(other, TlsRole::kRouter);
  const Counts before;
  const auto credentials = router.tls->MakeChannelCredentials(TlsRole::kDecode, nullptr);
  EXPECT_EQ(CallMethod(worker.address(), credentials, "/baton.v1.Cluster/Hello"),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_GT(Counts().ca, before.ca);
}

}  // namespace
}  // namespace baton
