#include "router/router_process.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "nlohmann/json.hpp"
#include "tests/unit/common/http/test_client.h"
#include "tests/unit/common/http/test_tls.h"
#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// The workers of its list do not exist.
RouterConfig LonelyConfig() {
  RouterConfig config;
  config.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
  config.prefill = {"127.0.0.1:1"};
  config.decode = {"127.0.0.1:2"};
  config.http_port = 0;
  config.grpc_port = 0;
  config.ready_file = ::testing::TempDir() + "/baton-router-process-test.json";
  return config;
}

nlohmann::json Ready(const RouterConfig& config) {
  std::ifstream in(config.ready_file);
  return nlohmann::json::parse(in);
}

uint16_t HttpPort(const RouterConfig& config) {
  const std::string url = Ready(config)["http_url"];
  return static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
}

uint16_t OpsPort(const RouterConfig& config) {
  const std::string url = Ready(config)["metrics_url"];
  return static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
}

int Get(uint16_t port, const std::string& path, const std::string& header = "") {
  http::TestClient client(port);
  client.Send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + header + "\r\n");
  return client.Read().status;
}

// GetModel of the gRPC service.
grpc::StatusCode CallModel(
    const std::string& address, const std::string& key,
    const std::shared_ptr<grpc::ChannelCredentials>& by = grpc::InsecureChannelCredentials()) {
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      grpc::CreateChannel(address, by));
  grpc::ClientContext context;
  if (!key.empty()) context.AddMetadata("authorization", key);
  const grpc::Slice empty("");
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
  absl::Notification done;
  stub.UnaryCall(&context, "/baton.v1.Inference/GetModel", {}, &request, &response,
                 [&](const grpc::Status& status) {
                   code = status.error_code();
                   done.Notify();
                 });
  done.WaitForNotification();
  return code;
}

TEST(RouterProcessTest, IsAliveButNotReadyWithoutWorkersAndDrainsAtOnce) {
  const RouterConfig config = LonelyConfig();
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = HttpPort(config);
  EXPECT_EQ(Get(port, "/health"), 200);
  EXPECT_EQ(Get(port, "/ready"), 503);
  EXPECT_EQ(Get(port, "/metrics"), 200);
  EXPECT_EQ(Get(port, "/status"), 200);
  EXPECT_EQ(Get(port, "/v1/models"), 200);
  (*process)->Drain([] { return false; });
}

TEST(RouterProcessTest, TheOpsPortHasWhatProbesAskAndNothingElse) {
  const RouterConfig config = LonelyConfig();
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = OpsPort(config);
  EXPECT_NE(port, HttpPort(config));
  EXPECT_EQ(Get(port, "/health"), 200);
  EXPECT_EQ(Get(port, "/ready"), 503);
  EXPECT_THAT(http::TestClient(port).Get("/metrics").body, HasSubstr("baton_ready 0"));
  for (const char* path : {"/status", "/audit", "/version", "/v1/models"}) {
    EXPECT_EQ(Get(port, path), 404) << path;
  }
}

TEST(RouterProcessTest, AsksForAKeyWhereTheApiIsAndNowhereElse) {
  RouterConfig config = LonelyConfig();
  config.api_keys_file = ::testing::TempDir() + "/baton-router-process-test-keys";
  std::ofstream(config.api_keys_file)
      << "alice ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n";
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = HttpPort(config);
  EXPECT_EQ(Get(port, "/v1/models"), 401);
  EXPECT_EQ(Get(port, "/v1/models", "Authorization: Bearer wrong\r\n"), 401);
  EXPECT_EQ(Get(port, "/v1/models", "Authorization: Bearer abc\r\n"), 200);
  for (const char* path : {"/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions"}) {
    EXPECT_EQ(http::TestClient(port).Post(path, R"({"prompt":"a"})").status, 401) << path;
  }
  for (const char* path : {"/health", "/version", "/metrics", "/status", "/audit"}) {
    EXPECT_EQ(Get(port, path), 200) << path;
  }
  EXPECT_EQ(Get(port, "/ready"), 503);
  const std::string grpc = Ready(config)["address"];
  EXPECT_EQ(CallModel(grpc, ""), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CallModel(grpc, "Bearer wrong"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CallModel(grpc, "Bearer abc"), grpc::StatusCode::OK);
}

TEST(RouterProcessTest, ATenantOverItsRateIsRefusedBeforeItsBodyIsRead) {
  RouterConfig config = LonelyConfig();
  config.api_keys_file = ::testing::TempDir() + "/baton-router-process-test-rates";
  std::ofstream(config.api_keys_file)
      << "alice ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad rate=0.001/s "
         "burst=1\n";
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer abc\r\n";
  http::TestClient client(HttpPort(config));
  const std::string body = R"({"prompt":"a","echo":true,"max_tokens":0})";  // Needs no worker.
  client.Send(absl::StrCat(head, "Content-Length: ", body.size(), "\r\n\r\n", body));
  ASSERT_EQ(client.Read().status, 200);
  client.Send(head + "Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
  const http::WireResponse refused = client.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("rate_limit_exceeded"));
  EXPECT_GT(std::stoi(refused.Header("Retry-After")), 900);
  EXPECT_TRUE(client.AtEnd());
  // What costs no tokens is not counted.
  EXPECT_EQ(Get(HttpPort(config), "/v1/models", "Authorization: Bearer abc\r\n"), 200);
}

// Until it holds; the file of keys is looked at each second.
bool Await(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (!condition() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(50));
  return condition();
}

// SHA-256 of "abc" and of "def".
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kDef[] = "cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34";

TEST(RouterProcessTest, KeysComeGoAndExpireWithoutARestartAndABadFileChangesNothing) {
  RouterConfig config = LonelyConfig();
  config.api_keys_file = ::testing::TempDir() + "/baton-router-process-test-reload";
  const auto write = [&](const std::string& text) { std::ofstream(config.api_keys_file) << text; };
  write(std::string("alice ") + kAbc + "\nbob " + kDef + " expires=2020-01-01\n");
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = HttpPort(config);
  const std::string grpc = Ready(config)["address"];
  const auto ask = [&](const std::string& key) {
    http::TestClient client(port);
    client.Send("GET /v1/models HTTP/1.1\r\nHost: t\r\nAuthorization: " + key + "\r\n\r\n");
    return client.Read();
  };
  const http::WireResponse expired = ask("Bearer def");
  EXPECT_EQ(expired.status, 401);
  EXPECT_EQ(expired.Header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(nlohmann::json::parse(expired.body)["error"]["code"], "invalid_api_key");
  EXPECT_THAT(expired.body, HasSubstr("expired on 2020-01-01T00:00:00Z"));
  EXPECT_EQ(CallModel(grpc, "Bearer def"), grpc::StatusCode::UNAUTHENTICATED);
  const auto refused = [&] { return http::TestClient(OpsPort(config)).Get("/metrics").body; };
  EXPECT_THAT(refused(), HasSubstr("\nbaton_api_keys_refused_total 0\n"));
  write(std::string("bob ") + kDef + "\nalice 12\n");
  ASSERT_TRUE(Await([&] {
    return refused().find("\nbaton_api_keys_refused_total 1\n") != std::string::npos;
  }));
  EXPECT_THAT(refused(), HasSubstr("\nbaton_api_keys_file_refused 1\n"));
  EXPECT_EQ(ask("Bearer abc").status, 200);
  write(std::string("bob ") + kDef + " quota=100/day\n");
  ASSERT_TRUE(Await([&] { return ask("Bearer def").status == 200; }));
  ASSERT_TRUE(Await(
      [&] { return refused().find("\nbaton_api_keys_file_refused 0\n") != std::string::npos; }));
  EXPECT_EQ(ask("Bearer abc").status, 401);
  EXPECT_EQ(CallModel(grpc, "Bearer abc"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CallModel(grpc, "Bearer def"), grpc::StatusCode::OK);
  // Scores of a prompt without new tokens: no worker is needed, and all of it is used.
  http::TestClient client(port);
  const std::string body = R"({"model":"tiny-kjv","prompt":[1,2,3,4],"max_tokens":0,"echo":true})";
  const auto post = [&] {
    client.Send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer def\r\n"
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  };
  for (int i = 0; i < 25; ++i) ASSERT_EQ(post().status, 200) << i;
  const http::WireResponse over = post();
  EXPECT_EQ(over.status, 429);
  EXPECT_EQ(nlohmann::json::parse(over.body)["error"]["code"], "insufficient_quota");
  const int64_t wait_s = std::stoll(over.Header("Retry-After"));
  const int64_t left_s = 86'400 - absl::ToUnixSeconds(absl::Now()) % 86'400;
  EXPECT_NEAR(wait_s, left_s, 60);
  EXPECT_EQ(over.Header("x-should-retry"), wait_s > 60 ? "false" : "");
}

// What takes servers of a CA, whatever their names are.
std::shared_ptr<grpc::ChannelCredentials> Trusting(const CertificateAuthority& authority) {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<tls::StaticDataCertificateProvider>(authority.certificate_pem()));
  options.watch_root_certs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return tls::TlsCredentials(options);
}

TEST(RouterProcessTest, TheApiSpeaksTlsOnBothPortsByTheCertificateOfTheMoment) {
  const auto old_authority = NewAuthority("test.local", UnixSeconds());
  const TlsFolder folder(NewFiles(old_authority, IdOf(TlsRole::kRouter), UnixSeconds()));
  RouterConfig config = LonelyConfig();
  config.api_tls_dir = folder.path();
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  const uint16_t port = HttpPort(config);
  const std::string grpc = Ready(config)["address"];
  EXPECT_THAT(std::string(Ready(config)["http_url"]), HasSubstr("https://"));
  EXPECT_EQ(Get(port, "/v1/models"), 0) << "in plaintext";
  EXPECT_NE(CallModel(grpc, ""), grpc::StatusCode::OK);
  const auto client_tls = http::NewClientTls();
  http::TestClient old_client(port, 0, client_tls.get());
  EXPECT_EQ(old_client.Get("/v1/models").status, 200);
  EXPECT_EQ(CallModel(grpc, "", Trusting(old_authority)), grpc::StatusCode::OK);
  EXPECT_EQ(Get(OpsPort(config), "/health"), 200) << "probes need no certificates";
  const auto authority = NewAuthority("test.local", UnixSeconds());
  folder.Write(NewFiles(authority, IdOf(TlsRole::kRouter), UnixSeconds()));
  ASSERT_TRUE(Await([&] {
    return CallModel(grpc, "", Trusting(authority)) == grpc::StatusCode::OK;
  }));
  EXPECT_NE(CallModel(grpc, "", Trusting(old_authority)), grpc::StatusCode::OK);
  EXPECT_EQ(old_client.Get("/v1/models").status, 200) << "an old connection goes on";
  folder.WriteOne("tls.key", "nothing");
  const auto metrics = [&] { return http::TestClient(OpsPort(config)).Get("/metrics").body; };
  ASSERT_TRUE(Await([&] {
    return metrics().find("\nbaton_api_tls_refused_total 1\n") != std::string::npos;
  }));
  EXPECT_THAT(metrics(), HasSubstr("\nbaton_api_tls_not_after_seconds "));
  EXPECT_THAT(metrics(), HasSubstr("\nbaton_api_tls_files_refused 1\n"));
  EXPECT_EQ(http::TestClient(port, 0, client_tls.get()).Get("/v1/models").status, 200);
}

TEST(RouterProcessTest, NamesItsModelAfterItsFolderOrAsItIsTold) {
  for (const auto& [model, served, name] :
       {std::tuple{"/deploy/models/tiny-kjv/", "", "tiny-kjv"},
        std::tuple{"/deploy/models/tiny-kjv/.", "", "tiny-kjv"},
        std::tuple{"/deploy/models/tiny-kjv", "kjv", "kjv"}}) {
    RouterConfig config = LonelyConfig();
    config.model = std::string(BATON_SOURCE_DIR) + model;
    config.served_model_name = served;
    config.max_model_len = 77;
    auto process = RouterProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    const std::string body = http::TestClient(HttpPort(config)).Get("/v1/models").body;
    const nlohmann::json shown = nlohmann::json::parse(body)["data"][0];
    EXPECT_EQ(shown["id"], name);
    EXPECT_EQ(shown["max_model_len"], 77);
  }
}

// A model folder with the shipped one's config and nothing else.
std::string BareModel(const std::string& name) {
  const std::filesystem::path folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(BATON_SOURCE_DIR "/deploy/models/tiny-kjv/config.json",
                             folder / "config.json");
  return folder.string();
}

TEST(RouterProcessTest, AModelWithoutATokenizerIsServedByIdsAndADamagedOneIsNot) {
  RouterConfig config = LonelyConfig();
  config.model = BareModel("baton-router-process-test-bare");
  {
    auto process = RouterProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    const http::WireResponse refused =
        http::TestClient(HttpPort(config)).Post("/tokenize", R"({"prompt":"a"})");
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("no tokenizer"));
  }
  std::ofstream(config.model + "/tokenizer.json") << "{";
  EXPECT_THAT(std::string(RouterProcess::Start(config).status().message()),
              HasSubstr("--model " + config.model));
  std::filesystem::remove(config.model + "/tokenizer.json");
  std::ofstream(config.model + "/generation_config.json") << "{";
  EXPECT_THAT(std::string(RouterProcess::Start(config).status().message()),
              HasSubstr("--model " + config.model));
}

// A request that nobody can serve yet waits for two seconds.
TEST(RouterProcessTest, ADrainWaitsForWhatRunsUnlessItIsHurried) {
  for (const bool is_hurried : {false, true}) {
    const RouterConfig config = LonelyConfig();
    auto process = RouterProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    const uint16_t port = HttpPort(config);
    const auto num_queued = [&] {
      const std::string body = http::TestClient(port).Get("/status").body;
      return nlohmann::json::parse(body)["router"]["queued_requests"].get<int>();
    };
    std::optional<http::TestClient> client;
    absl::Time sent;
    for (bool is_queued = false; !is_queued;) {  // Again if a late look has missed its two seconds.
      client.emplace(port);
      sent = absl::Now();
      client->SendPost("/v1/completions", R"({"prompt":"a","max_tokens":1})");
      while (!is_queued && absl::Now() - sent < absl::Seconds(1)) is_queued = num_queued() > 0;
    }
    (*process)->Drain([&] { return is_hurried; });
    const bool is_late = absl::Now() - sent > absl::Milliseconds(1500);  // Its 503 may have come.
    const int status = client->Read().status;
    EXPECT_TRUE(status == (is_hurried ? 0 : 503) || (is_late && status == 503)) << status;
  }
}

// Of requests at once, which wait two seconds for workers, the statuses.
std::vector<int> StatusesAtOnce(uint16_t port, int num_requests) {
  std::vector<std::unique_ptr<http::TestClient>> clients;
  for (int i = 0; i < num_requests; ++i) {
    clients.push_back(std::make_unique<http::TestClient>(port));
    clients.back()->SendPost("/v1/completions", R"({"prompt":"a","max_tokens":1})");
  }
  std::vector<int> statuses;
  for (const auto& client : clients) statuses.push_back(client->Read().status);
  return statuses;
}

TEST(RouterProcessTest, ATenantMayHaveAsManyRequestsAtATimeAsTheOptionSays) {
  RouterConfig config = LonelyConfig();
  {
    auto process = RouterProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_THAT(StatusesAtOnce(HttpPort(config), 4), Each(503));
  }
  config.max_requests_per_tenant = 2;
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  std::vector<int> statuses;
  // Again if some came after the two seconds of the others.
  for (int round = 0; round < 5 && std::ranges::count(statuses, 429) != 2; ++round) {
    statuses = StatusesAtOnce(HttpPort(config), 4);
  }
  EXPECT_THAT(statuses, UnorderedElementsAre(503, 503, 429, 429));
}

// It is not the node's yet, but it was begun.
TEST(RouterProcessTest, ADrainWaitsForARequestThatIsStillBeingSent) {
  const RouterConfig config = LonelyConfig();
  auto process = RouterProcess::Start(config);
  ASSERT_TRUE(process.ok()) << process.status();
  http::TestClient slow(HttpPort(config));
  slow.Send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 14\r\n"
            "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(slow.ReadSome(), "HTTP/1.1 100 Continue\r\n\r\n");  // The head was read.
  slow.Send("{\"prompt\"");
  std::jthread draining([&] { (*process)->Drain([] { return false; }); });
  absl::SleepFor(absl::Milliseconds(500));
  slow.Send(":\"a\"}");
  EXPECT_EQ(slow.Read().status, 200);
}

TEST(RouterProcessTest, RefusesToStartByNameOfTheOption) {
  RouterConfig no_model = LonelyConfig();
  no_model.model = "/nonexistent";
  EXPECT_THAT(std::string(RouterProcess::Start(no_model).status().message()),
              HasSubstr("--model /nonexistent"));
  RouterConfig too_long = LonelyConfig();
  too_long.max_model_len = 1 << 20;
  EXPECT_THAT(std::string(RouterProcess::Start(too_long).status().message()),
              HasSubstr("--max-model-len 1048576"));
  RouterConfig first = LonelyConfig();
  auto process = RouterProcess::Start(first);
  ASSERT_TRUE(process.ok()) << process.status();
  RouterConfig second = LonelyConfig();
  second.http_port = HttpPort(first);
  EXPECT_THAT(std::string(RouterProcess::Start(second).status().message()),
              HasSubstr("--http-port"));
  second.http_port = 0;
  second.ops_port = OpsPort(first);
  EXPECT_THAT(std::string(RouterProcess::Start(second).status().message()),
              HasSubstr("--ops-port"));
  second.ops_port = 0;
  const std::string grpc = Ready(first)["address"];
  second.grpc_port = std::stoi(grpc.substr(grpc.rfind(':') + 1));
  EXPECT_THAT(std::string(RouterProcess::Start(second).status().message()),
              HasSubstr("--grpc-port"));
  RouterConfig no_keys = LonelyConfig();
  no_keys.api_keys_file = "/nonexistent";
  EXPECT_THAT(std::string(RouterProcess::Start(no_keys).status().message()),
              HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace baton
