#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/http/http_server.h"
#include "router/generation/generation_service.h"
#include "router/openai/json.h"
#include "router/openai/openai_api.h"
#include "tests/unit/common/http/test_client.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {

// The whole HTTP surface on a free port, before a scripted node.
class ApiServer {
 public:
  explicit ApiServer(FakeFrontend* frontend, bool with_tokenizer = true,
                     http::ServerOptions server = {}, http::Executor text = nullptr) {
    GenerationServiceOptions options{.model_name = "tiny"};
    options.limits.max_model_len = 256;
    options.limits.vocab_size = FakeTokenizer::kSize;
    service_ = std::make_unique<GenerationService>(
        std::move(options), with_tokenizer ? std::make_shared<FakeTokenizer>() : nullptr, frontend);
    OpenAiOptions api{.version = "0.1.0", .created = 123, .unix_seconds = [] { return 456; }};
    api.text_executor = std::move(text);
    api.metrics_text = [] { return std::string("baton_up 1\n"); };
    auto created = http::HttpServer::Create(std::move(server), OpenAiRoutes(api, service_.get()));
    EXPECT_TRUE(created.ok()) << created.status();
    server_ = *std::move(created);
    server_->Start();
  }

  uint16_t port() const { return server_->port(); }
  http::HttpServer& server() { return *server_; }

  http::WireResponse Post(std::string_view path, std::string_view body) {
    return http::TestClient(port()).Post(path, body);
  }
  http::WireResponse Get(std::string_view path) { return http::TestClient(port()).Get(path); }

  Json PostJson(std::string_view path, std::string_view body, int status = 200) {
    const http::WireResponse response = Post(path, body);
    EXPECT_EQ(response.status, status) << response.body;
    absl::StatusOr<Json> json = ParseJson(response.body);
    EXPECT_TRUE(json.ok()) << response.body;
    return json.value_or(Json::object());
  }

 private:
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<http::HttpServer> server_;
};

// The data of each server-sent event.
inline std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    EXPECT_EQ(body.compare(at, 6, "data: "), 0) << body.substr(at, 80);
    if (end == std::string::npos) {
      ADD_FAILURE() << "unfinished event: " << body.substr(at);
      break;
    }
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

}  // namespace baton
