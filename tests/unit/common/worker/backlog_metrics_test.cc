#include "common/worker/backlog_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(BacklogMetricsTest, SayTokensRateAndTheTimeThatFollows) {
  WorkerStatus status;
  status.queued_tokens = 300;
  Metrics metrics("prefill", "1");
  ExportBacklog([&status] { return status; }, &metrics);
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_queued_prompt_tokens 300\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_step_tokens_per_second 0\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_prompt_backlog_seconds 0\n"));
  status.tokens_per_s = 120;
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_step_tokens_per_second 120\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_prompt_backlog_seconds 2.5\n"));
}

}  // namespace
}  // namespace baton
