#include "common/rpc/peer_certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr Duration kHandshakeWait = std::chrono::seconds(20);

// Whoever connects hears nothing.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{.sin_family = AF_INET};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(socket_, 64), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
  }
  ~SilentPort() { close(socket_); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  const int socket_;
  int port_ = 0;
};

class PeerCertificateTest : public ::testing::Test {
 protected:
  absl::StatusOr<int64_t> Ask(const TlsParty& asker, TlsRole server) const {
    return AskAt(worker_.address(), asker, server);
  }
  static absl::StatusOr<int64_t> AskAt(const std::string& address, const TlsParty& asker,
                                       TlsRole server = TlsRole::kDecode) {
    return AskCertificateEnds({{address, server}}, *asker.tls, kHandshakeWait).at(0);
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
  const absl::Status unknown = Ask(stranger, TlsRole::kDecode).status();
  EXPECT_TRUE(absl::IsUnauthenticated(unknown)) << unknown;
  EXPECT_THAT(unknown.message(), HasSubstr("of a CA"));
}

TEST_F(PeerCertificateTest, ACertificateThatHasEndedIsSeen) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const int64_t then = UnixSeconds() - (kLeafDays + 1) * kDayS;
  const ShowingServer ended(NewFiles(authority_, IdOf(TlsRole::kDecode), then),
                            authority_.certificate_pem());
  const auto end = AskAt(ended.address(), admin);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_LT(*end, UnixSeconds());
}

TEST_F(PeerCertificateTest, WhoDoesNotTakeTheOwnCertificateIsNoGoodServer) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const ShowingServer wary(NewFiles(authority_, IdOf(TlsRole::kDecode), UnixSeconds()),
                           NewAuthority("test.local", UnixSeconds()).certificate_pem());
  const absl::Status refused = AskAt(wary.address(), admin).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("does not take"));
}

// A handshake that nobody answers is given up after a second or more, one after the other in 20.
TEST_F(PeerCertificateTest, AllAreAskedAtTheSameTime) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const SilentPort silent;
  std::vector<TlsServerAt> servers(20, {silent.address(), TlsRole::kPrefill});
  servers.push_back({worker_.address(), TlsRole::kDecode});
  const Time begun = SteadyNow();
  const auto ends = AskCertificateEnds(servers, *admin.tls, std::chrono::seconds(10));
  EXPECT_LT(SteadyNow() - begun, std::chrono::seconds(15));
  ASSERT_EQ(ends.size(), servers.size());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(absl::IsUnavailable(ends[i].status())) << i;
  EXPECT_TRUE(ends.back().ok()) << ends.back().status() << ": it had all the time";
}

TEST_F(PeerCertificateTest, NobodyThereIsAnErrorWithinTheLimit) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const auto none = AskAt("127.0.0.1:1", admin);
  EXPECT_TRUE(absl::IsUnavailable(none.status())) << none.status();
}

}  // namespace
}  // namespace baton
