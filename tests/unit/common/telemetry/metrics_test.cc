#include "common/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MetricsTest, ReadsExportedValuesAtEachScrape) {
  Metrics metrics("decode", "1.2.3");
  int free = 7;
  metrics.Export("baton_kv_blocks", "Blocks by state.", MetricKind::kGauge, [&] {
    return std::vector<MetricSample>{{.labels = {{"state", "free"}}, .value = double(free)}};
  });
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_kv_blocks{state=\"free\"} 7\n"));
  free = 5;
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_kv_blocks{state=\"free\"} 5\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("# TYPE baton_kv_blocks gauge\n"));
}

TEST(MetricsTest, CountersAreCounters) {
  Metrics metrics("decode", "1");
  metrics.Export("baton_preemptions_total", "Preemptions.", MetricKind::kCounter,
                 [] { return std::vector<MetricSample>{{.value = 3}}; });
  EXPECT_THAT(metrics.Render(), HasSubstr("# TYPE baton_preemptions_total counter\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_preemptions_total 3\n"));
}

TEST(MetricsTest, HistogramsOfOneNameDifferByLabels) {
  Metrics metrics("prefill", "1");
  Histogram prefill =
      metrics.AddHistogram("baton_step_seconds", "Steps.", {{"phase", "prefill"}}, {0.1, 1});
  Histogram decode =
      metrics.AddHistogram("baton_step_seconds", "Steps.", {{"phase", "decode"}}, {0.1, 1});
  prefill.Observe(0.5);
  decode.Observe(0.05);
  decode.Observe(5);
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"prefill\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_bucket{phase=\"prefill\",le=\"0.1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_bucket{phase=\"decode\",le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_step_seconds_count{phase=\"decode\"} 2\n"));
}

TEST(MetricsTest, SaysWhatRuns) {
  EXPECT_THAT(Metrics("router", "0.1.0").Render(), HasSubstr("version=\"0.1.0\""));
}

TEST(MetricsTest, BucketsDouble) {
  EXPECT_THAT(DoublingBuckets(0.001, 3), ElementsAre(0.001, 0.002, 0.004));
}

}  // namespace
}  // namespace baton
