#include "deploy/cli/remote_cluster.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Says() {
  return json::parse(R"({
    "workers": [{"role": "decode", "address": "a:1", "healthy": true, "reason": ""},
                {"role": "prefill", "address": "b:1", "healthy": false, "reason": "no TLS there"},
                {"role": "decode", "address": "c:1", "healthy": false},
                7],
    "router": {"ready": false}})");
}

TEST(RemoteClusterTest, WorkersHaveTheirRolesNameAndNumber) {
  const std::vector<ListedWorker> workers = WorkersOf(Says());
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[0].name, "decode-0");
  EXPECT_EQ(workers[1].name, "prefill-0");
  EXPECT_EQ(workers[1].role, Role::kPrefill);
  EXPECT_EQ(workers[1].reason, "no TLS there");
  EXPECT_EQ(workers[2].name, "decode-1");
  EXPECT_EQ(workers[2].address, "c:1");
  EXPECT_TRUE(workers[0].healthy && !workers[1].healthy && !workers[2].healthy);
}

TEST(RemoteClusterTest, OddDocumentsHaveNoWorkers) {
  for (const char* text : {"{}", "[]", R"({"workers": 1})", R"({"workers": {}})"}) {
    EXPECT_TRUE(WorkersOf(json::parse(text)).empty()) << text;
  }
}

TEST(RemoteClusterTest, TheDoctorSaysWhoIsNotWellAndWhy) {
  const std::vector<Finding> findings = ExamineRemote("r:7000", Says());
  ASSERT_EQ(findings.size(), 4u);
  EXPECT_EQ(findings[0].fact, "r:7000 is not ready");
  EXPECT_NE(findings[0].cure, "");
  EXPECT_EQ(findings[1].cure, "");
  EXPECT_EQ(findings[2].cure, "no TLS there");
  EXPECT_NE(findings[3].cure, "");
  const auto none = ExamineRemote("r:7000", absl::UnavailableError("nothing answers there"));
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].fact, "nothing answers there");
  EXPECT_THAT(none[0].cure, HasSubstr("is r:7000 its --admin-port"));
}

TEST(RemoteClusterTest, TheDoctorLooksAtEachCertificate) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const TlsWorker decode(authority, baton::Role::kDecode);
  const TlsParty admin(authority, TlsRole::kAdmin);
  const auto cluster =
      RemoteCluster::Open({.router = "127.0.0.1:1", .tls_dir = admin.folder.path()});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ShowingServer ended(
      NewFiles(authority, IdOf(TlsRole::kDecode), UnixSeconds() - (kLeafDays + 1) * kDayS),
      authority.certificate_pem());
  const TlsWorker other(NewAuthority("test.local", UnixSeconds()), baton::Role::kPrefill);
  const json says = {{"workers", {{{"role", "decode"}, {"address", decode.address()}},
                                  {{"role", "decode"}, {"address", ended.address()}},
                                  {{"role", "prefill"}, {"address", decode.address()}},
                                  {{"role", "prefill"}, {"address", other.address()}},
                                  {{"role", "prefill"}, {"address", "127.0.0.1:1"}},
                                  {{"role", "prefill"}, {"address", "127.0.0.1:2"},
                                   {"healthy", true}}}}};
  std::map<std::string, Finding> findings;
  for (const Finding& finding : cluster->ExamineCerts(says, UnixSeconds())) {
    EXPECT_EQ(finding.subject, "TLS");
    findings[finding.fact.substr(0, finding.fact.find(": "))] = finding;
  }
  ASSERT_EQ(findings.size(), 6u);  // Whom nobody reaches is not well already.
  const Finding& far = findings["prefill-3 at 127.0.0.1:2"];
  EXPECT_THAT(far.fact, HasSubstr("not reached from here"));
  EXPECT_EQ(far.cure, "");
  const Finding& good = findings[absl::StrCat("decode-0 at ", decode.address())];
  EXPECT_THAT(good.fact, HasSubstr("certificate ends"));
  EXPECT_EQ(good.cure, "");
  const Finding& old = findings[absl::StrCat("decode-1 at ", ended.address())];
  EXPECT_THAT(old.fact, HasSubstr("has ended"));
  EXPECT_THAT(old.cure, HasSubstr("certs renew"));
  const Finding& misled = findings[absl::StrCat("prefill-0 at ", decode.address())];
  EXPECT_THAT(misled.fact, HasSubstr("role decode where prefill"));
  EXPECT_THAT(misled.cure, HasSubstr("certs issue"));
  const Finding& stranger = findings[absl::StrCat("prefill-1 at ", other.address())];
  EXPECT_THAT(stranger.fact, HasSubstr("of a CA"));
  EXPECT_THAT(stranger.cure, HasSubstr("certs issue"));
  const Finding& nobody = findings["router at 127.0.0.1:1"];
  EXPECT_THAT(nobody.fact, HasSubstr("nothing answers"));
  EXPECT_THAT(nobody.cure, HasSubstr("does it run"));
}

TEST(RemoteClusterTest, WhatIsMissingIsSaidByItsOption) {
  const auto message = [](const std::string& router, const std::string& tls_dir) {
    return std::string(RemoteCluster::Open({.router = router, .tls_dir = tls_dir})
                           .status().message());
  };
  EXPECT_THAT(message("r", "certs"), HasSubstr("--router r"));
  EXPECT_THAT(message("r:7000", ""), HasSubstr("give --tls-dir"));
  EXPECT_THAT(message("r:7000", "/no/such/folder"), HasSubstr("--tls-dir /no/such/folder"));
}

}  // namespace
}  // namespace baton::cli
