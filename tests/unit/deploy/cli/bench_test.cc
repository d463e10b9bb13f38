#include "deploy/cli/bench.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

TEST(BenchTest, QuantileIsTheNearestRank) {
  EXPECT_EQ(Quantile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({4, 1, 3, 2}, 0.99), 4);
  EXPECT_EQ(Quantile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(Quantile({}, 0.5), 0);
}

TEST(BenchTest, SummaryCountsFailuresAndGoodput) {
  const BenchOptions options{.ttft_slo_ms = 10, .itl_slo_ms = 5};
  const nlohmann::json summary =
      Summarize(options,
                {{.ok = true, .ttft_ms = 9, .e2e_ms = 17, .gaps_ms = {4, 4}},
                 {.ok = true, .ttft_ms = 11, .e2e_ms = 11},
                 {.ok = true, .ttft_ms = 1, .e2e_ms = 13, .gaps_ms = {12}},
                 {.ok = false, .error = "refused"}},
                2.0);
  EXPECT_EQ(summary["ok"], 3);
  EXPECT_EQ(summary["failed"], 1);
  EXPECT_EQ(summary["first_error"], "refused");
  EXPECT_DOUBLE_EQ(summary["goodput"].get<double>(), 0.25);
  EXPECT_DOUBLE_EQ(summary["tokens_per_s"].get<double>(), 3.0);
  EXPECT_EQ(summary["ttft_ms"]["p99"], 11);
  EXPECT_EQ(summary["itl_ms"]["count"], 3);
}

TEST(BenchTest, ARunWithoutASampleHasNumbersToo) {
  const nlohmann::json summary = Summarize({}, {}, 0);
  for (const char* key : {"goodput", "requests_per_s", "tokens_per_s"}) EXPECT_EQ(summary[key], 0);
  EXPECT_EQ(summary["ttft_ms"]["mean"], 0.0);
}

TEST(BenchTest, EachNumberOutOfRangeIsRefusedByName) {
  const auto error = [](const BenchOptions& options) { return options.Validate().ToString(); };
  EXPECT_NE(error({.rate = 1e6}).find("--rate"), std::string::npos);
  EXPECT_NE(error({.num_requests = 0}).find("--num-requests"), std::string::npos);
  EXPECT_NE(error({.prompt_tokens = 0}).find("--prompt-tokens"), std::string::npos);
  EXPECT_NE(error({.max_tokens = 0}).find("--max-tokens"), std::string::npos);
  EXPECT_TRUE(BenchOptions().Validate().ok());
}

TEST(BenchTest, ARateOfZeroIsRefusedByName) {
  EXPECT_NE(BenchOptions{.rate = 0}.Validate().ToString().find("--rate"), std::string::npos);
}

}  // namespace
}  // namespace baton::cli
