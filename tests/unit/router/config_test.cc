#include "router/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RouterConfig GoodConfig() {
  RouterConfig config;
  config.model = "somewhere";
  config.prefill = {"127.0.0.1:1"};
  config.decode = {"127.0.0.1:2"};
  return config;
}

void SetBeyondLoopback(RouterConfig* config) {
  config->host = "10.0.0.1";
  config->tls_dir = "certs";
  config->api_keys_file = "keys";
  config->api_plaintext = true;
}

TEST(RouterConfigTest, BeyondLoopbackIsServedWithTlsAndKeys) {
  RouterConfig config = GoodConfig();
  SetBeyondLoopback(&config);
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
  config.api_plaintext = false;
  config.api_tls_dir = "api";
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

TEST(RouterConfigTest, NamesStandBesideAddresses) {
  RouterConfig config = GoodConfig();
  config.prefill.push_back("dns:///localhost:7000");
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
  config.decode = {"dns:///decode.ns.svc.cluster.local.:7000"};
  EXPECT_FALSE(config.Validate().ok());
  config.tls_dir = "certs";
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

TEST(RouterConfigTest, OperatorsHaveAPortWhereTheyHaveCertificates) {
  RouterConfig config = GoodConfig();
  config.admin_port = 7000;
  EXPECT_THAT(config.Validate().message(), HasSubstr("--admin-port 7000: "));
  SetBeyondLoopback(&config);
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
  config.admin_port = 70000;
  EXPECT_THAT(config.Validate().message(), HasSubstr("--admin-port 70000"));
  config.admin_port.reset();
  EXPECT_EQ(config.AdminPort(), 7000);
  config.http_port = 0;
  EXPECT_EQ(config.AdminPort(), 0);
}

TEST(RouterConfigTest, DefaultsAreValidOnceModelAndWorkersAreNamed) {
  EXPECT_FALSE(RouterConfig{}.Validate().ok());
  EXPECT_TRUE(GoodConfig().Validate().ok()) << GoodConfig().Validate();
}

TEST(RouterConfigTest, NamesTheOptionOfEachWrongValue) {
  struct Case {
    const char* option;
    std::function<void(RouterConfig*)> break_it;
  };
  const Case cases[] = {
      {"--model", [](auto* c) { c->model = ""; }},
      {"--prefill is missing", [](auto* c) { c->prefill.clear(); }},
      {"--decode is missing", [](auto* c) { c->decode.clear(); }},
      {"--prefill localhost", [](auto* c) { c->prefill = {"localhost"}; }},
      {"--decode h:0", [](auto* c) { c->decode = {"h:0"}; }},
      {"--decode h:99999", [](auto* c) { c->decode = {"h:99999"}; }},
      {"--decode 127.0.0.1:1: is given twice", [](auto* c) { c->decode = {"127.0.0.1:1"}; }},
      {"--prefill dns:///name: must be", [](auto* c) { c->prefill = {"dns:///name"}; }},
      {"--decode dns://h/n:1: must be", [](auto* c) { c->decode = {"dns://h/n:1"}; }},
      {"--prefill dns:///n:1: beyond loopback --tls-dir is needed",
       [](auto* c) { c->prefill = {"dns:///n:1"}; }},
      {"dns:///localhost:1: is given twice",
       [](auto* c) { c->decode.assign(2, "dns:///localhost:1"); }},
      {"--policy fastest", [](auto* c) { c->policy = "fastest"; }},
      {"--host 0.0.0.0", [](auto* c) { c->host = "0.0.0.0"; }},
      {"--tls-dir is needed", [](auto* c) { c->prefill = {"10.0.0.1:7000"}; }},
      {"--api-keys-file is needed", [](auto* c) { SetBeyondLoopback(c); c->api_keys_file = ""; }},
      {"--api-plaintext", [](auto* c) { SetBeyondLoopback(c); c->api_plaintext = false; }},
      {"--api-tls-dir is needed",
       [](auto* c) { SetBeyondLoopback(c); c->api_plaintext = false; }},
      {"--api-plaintext with --api-tls-dir api",
       [](auto* c) { SetBeyondLoopback(c); c->api_tls_dir = "api"; }},
      {"--tls-dir is needed", [](auto* c) { SetBeyondLoopback(c); c->tls_dir = ""; }},
      {"--http-port 65536", [](auto* c) { c->http_port = 65536; }},
      {"--ops-port 65536", [](auto* c) { c->ops_port = 65536; }},
      {"--grpc-port -1", [](auto* c) { c->grpc_port = -1; }},
      {"--max-model-len -1", [](auto* c) { c->max_model_len = -1; }},
      {"--max-queued-requests 0", [](auto* c) { c->max_queued_requests = 0; }},
      {"--max-queued-tokens 0", [](auto* c) { c->max_queued_tokens = 0; }},
      {"--max-queued-bytes 0", [](auto* c) { c->max_queued_bytes = 0; }},
      {"--max-unread-bytes 0", [](auto* c) { c->max_unread_bytes = 0; }},
      {"--max-queue-wait-s -1", [](auto* c) { c->max_queue_wait_s = -1; }},
      {"--request-timeout-s 0", [](auto* c) { c->request_timeout_s = 0; }},
      {"--max-connections 0", [](auto* c) { c->max_connections = 0; }},
      {"--max-requests-per-tenant -1", [](auto* c) { c->max_requests_per_tenant = -1; }},
      {"--drain-timeout-s -1", [](auto* c) { c->drain_timeout_s = -1; }},
      {"--log-level loud", [](auto* c) { c->log_level = "loud"; }},
  };
  for (const Case& c : cases) {
    RouterConfig config = GoodConfig();
    c.break_it(&config);
    const absl::Status status = config.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.option;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.option));
  }
}

TEST(RouterConfigTest, TheOpsPortIsAnyWhereThatOfTheApiIs) {
  RouterConfig config;
  EXPECT_EQ(config.OpsPort(), 9090);
  config.http_port = 0;
  EXPECT_EQ(config.OpsPort(), 0);
  config.ops_port = 9091;
  EXPECT_EQ(config.OpsPort(), 9091);
}

TEST(RouterConfigTest, EveryFlagReachesItsField) {
  std::vector<std::string> words = {"baton-router",
                                    "--model=m",
                                    "--served-model-name=n",
                                    "--max-model-len=1",
                                    "--prefill=a:1",
                                    "--prefill=b:2",
                                    "--decode=c:3",
                                    "--policy=least_loaded",
                                    "--host=127.0.0.2",
                                    "--http-port=2",
                                    "--grpc-port=3",
                                    "--ops-port=10",
                                    "--api-keys-file=k",
                                    "--max-queued-requests=4",
                                    "--max-queued-tokens=5",
                                    "--max-queued-bytes=6",
                                    "--request-timeout-s=7",
                                    "--max-requests-per-tenant=9",
                                    "--drain-timeout-s=8",
                                    "--ready-file=r",
                                    "--log-level=error"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  RouterConfig config;
  ASSERT_EQ(ParseRouterCommandLine(static_cast<int>(argv.size()), argv.data(), &config),
            std::nullopt);
  EXPECT_EQ(config.model, "m");
  EXPECT_EQ(config.served_model_name, "n");
  EXPECT_EQ(config.max_model_len, 1);
  EXPECT_THAT(config.prefill, ElementsAre("a:1", "b:2"));
  EXPECT_THAT(config.decode, ElementsAre("c:3"));
  EXPECT_EQ(config.policy, "least_loaded");
  EXPECT_EQ(config.host, "127.0.0.2");
  EXPECT_EQ(config.http_port, 2);
  EXPECT_EQ(config.grpc_port, 3);
  EXPECT_EQ(config.OpsPort(), 10);
  EXPECT_EQ(config.api_keys_file, "k");
  EXPECT_EQ(config.max_queued_requests, 4);
  EXPECT_EQ(config.max_queued_tokens, 5);
  EXPECT_EQ(config.max_queued_bytes, 6);
  EXPECT_EQ(config.request_timeout_s, 7);
  EXPECT_EQ(config.max_requests_per_tenant, 9);
  EXPECT_EQ(config.drain_timeout_s, 8);
  EXPECT_EQ(config.ready_file, "r");
  EXPECT_EQ(config.log_level, "error");
}

}  // namespace
}  // namespace baton
