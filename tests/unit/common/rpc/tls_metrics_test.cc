#include "common/rpc/tls_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/failed_handshakes.h"
#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TlsMetricsTest, TellWhenTheCertificateEndsAndThatNoneWasRefused) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const TlsParty party(authority, TlsRole::kRouter);
  Metrics metrics("router", "1");
  ExportTls(party.tls.get(), &metrics);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr(absl::StrCat("baton_tls_not_after_seconds ",
                                           party.tls->current()->not_after_s, "\n")));
  EXPECT_THAT(text, HasSubstr("baton_tls_generations_refused_total 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_tls_files_refused 0\n"));
  // Those of the whole process, of other tests too.
  const FailedHandshakes& failed = CountFailedHandshakes();
  for (const auto& [reason, count] : {std::pair{"identity", int64_t{0}},
                                      std::pair{"method", int64_t{0}},
                                      std::pair{"ca", failed.ca.load()},
                                      std::pair{"expired", failed.expired.load()},
                                      std::pair{"handshake", failed.handshake.load()}}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("baton_tls_refused_total{reason=\"", reason, "\"} ",
                                             count, "\n")));
  }
}

TEST(TlsMetricsTest, CountThoseWhoAreRefusedByWhy) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const TlsWorker worker(authority, Role::kDecode);
  Metrics metrics("decode", "1");
  ExportTls(worker.party.tls.get(), &metrics);
  const auto call = [&](TlsRole role, const std::string& release) {
    return CallMethod(worker.address(),
                      AnyServer(NewFiles(authority, IdOf(role, release), UnixSeconds()),
                                authority.certificate_pem()),
                      "/baton.v1.Cluster/Drain");
  };
  EXPECT_EQ(call(TlsRole::kRouter, "baton"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_tls_refused_total{reason=\"method\"} 1\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_tls_refused_total{reason=\"identity\"} 0\n"));
  EXPECT_EQ(call(TlsRole::kAdmin, "other"), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("baton_tls_refused_total{reason=\"identity\"} 0\n")));
}

TEST(TlsMetricsTest, AreAbsentWhereThereIsNoTls) {
  Metrics metrics("router", "1");
  ExportTls(nullptr, &metrics);
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("baton_tls")));
}

}  // namespace
}  // namespace baton
