#include "deploy/cli/cert_ends.h"

#include "common/tls/certificate_authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kNowS = 1'800'000'000;

TEST(CertEndsTest, TheEndIsThatOfTheMetricOfThatName) {
  EXPECT_EQ(CertEndIn("# HELP baton_tls_not_after_seconds When.\n"
                      "baton_api_tls_not_after_seconds 1\n"
                      "baton_tls_not_after_seconds 1800000000\n"),
            kNowS);
  EXPECT_EQ(CertEndIn("baton_tls_not_after_seconds 1.8e9\n"), kNowS);
  EXPECT_EQ(CertEndIn("baton_ready 1\n"), std::nullopt);
  EXPECT_EQ(CertEndIn(""), std::nullopt);
}

TEST(CertEndsTest, EachServerHasALineAndLessThanAWeekIsAProblem) {
  const json ends = {{"decode-0", kNowS + 7 * kDayS},
                     {"prefill-0", kNowS + 7 * kDayS - 1},
                     {"router", kNowS - 1}};
  EXPECT_THAT(CertEndLines(ends, kNowS),
              ElementsAre("decode-0: certificate ends 2027-01-22T08:00:00Z, in 7 days",
                          "prefill-0: certificate ends 2027-01-22T07:59:59Z, in 6 days",
                          "router: certificate has ended on 2027-01-15T07:59:59Z"));
  const std::vector<Finding> findings = ExamineCertEnds(ends, kNowS);
  ASSERT_THAT(findings, SizeIs(3));
  EXPECT_THAT(findings[0].cure, IsEmpty());
  EXPECT_THAT(findings[1].cure, testing::HasSubstr("baton certs renew"));
  EXPECT_THAT(findings[2].cure, testing::HasSubstr("baton certs renew"));
}

TEST(CertEndsTest, WhereThereIsNoTlsNothingIsSaid) {
  RunState state;
  state.servers = {{.name = "decode-0", .role = "decode"}};
  EXPECT_THAT(AskCertEnds(state), IsEmpty());
  EXPECT_THAT(ExamineCertEnds(AskCertEnds(state), kNowS), IsEmpty());
}

}  // namespace
}  // namespace baton::cli
