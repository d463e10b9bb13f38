#include "router/router_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "tests/unit/router/generation/fakes.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(RouterMetricsTest, CountsWhatClientsFeel) {
  RouterService service(
      {.node = {.incarnation = 9},
       .workers = {{Role::kPrefill, "127.0.0.1:1"}, {Role::kDecode, "127.0.0.1:2"}}},
      *MakeRoutingPolicy("least_loaded"));
  RouterMetrics metrics(&service);
  metrics.OnFirstToken(std::chrono::milliseconds(10));
  metrics.OnNextToken(std::chrono::milliseconds(2));
  metrics.OnRequestEnd(absl::OkStatus(), std::chrono::milliseconds(12),
                       {.prompt_tokens = 5, .completion_tokens = 2});
  metrics.OnRequestEnd(absl::ResourceExhaustedError("busy"), std::chrono::milliseconds(1), {});
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("baton_request_ttft_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_request_inter_token_latency_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_request_e2e_seconds_count 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_requests_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_requests_total{outcome=\"overloaded\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_tokens_total{kind=\"completion\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("baton_workers{role=\"decode\",healthy=\"false\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baton_requests_waiting{stage=\"queue\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_requests_waiting_by_priority{priority=\"high\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_requests_waiting_by_priority{priority=\"low\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_queued_prompt_tokens 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_tenants_live 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_requests_shed_total 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_ready 0\n"));
  EXPECT_THAT(text, HasSubstr("baton_draining 0\n"));
  metrics.SetDraining();
  EXPECT_THAT(metrics.Render(), HasSubstr("baton_draining 1\n"));
}

class CachingTokenizer : public FakeTokenizer {
 public:
  TokenCacheInfo cache_info() const override { return {.hits = 3, .misses = 4, .bytes = 5}; }
};

TEST(RouterMetricsTest, TellsWhatIsKnownOfLongTexts) {
  RouterService service({.node = {.incarnation = 9}}, *MakeRoutingPolicy("least_loaded"));
  RouterMetrics metrics(&service);
  metrics.ExportTokenCache(std::make_shared<CachingTokenizer>());
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("baton_token_cache_chunks_total{result=\"hit\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("baton_token_cache_chunks_total{result=\"miss\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("baton_token_cache_bytes 5\n"));
}

}  // namespace
}  // namespace baton
