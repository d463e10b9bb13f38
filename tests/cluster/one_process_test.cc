// A router and its workers in one process, over real gRPC and the TCP transport: all edge, engine,
// compute and transport threads under one thread sanitizer.
//   cmake --preset tsan && cmake --build build/tsan --target one_process_test &&
//   ctest --test-dir build/tsan -R tsan_races --output-on-failure
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/worker/worker_process.h"
#include "decode_worker/program.h"
#include "nlohmann/json.hpp"
#include "prefill_worker/program.h"
#include "router/router_process.h"
#include "tests/unit/common/http/test_client.h"

namespace baton {
namespace {

constexpr int kClients = 4;
constexpr int kRequestsPerClient = 6;

std::string ReadyFile(const std::string& name) {
  return ::testing::TempDir() + "/baton-one-process-" + name + ".json";
}

nlohmann::json Ready(const std::string& name) {
  std::ifstream in(ReadyFile(name));
  return nlohmann::json::parse(in);
}

WorkerConfig SmallWorker(const std::string& name) {
  WorkerConfig config;
  config.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
  config.threads = 2;
  config.num_blocks = 64;
  config.chunk_tokens = 32;
  config.drain_timeout_s = 20;
  config.ready_file = ReadyFile(name);
  return config;
}

// A sampled answer; the index decides prompt and seed.
std::string Body(int index, bool stream) {
  std::string prompt;
  for (int i = 0; i < 4 + 30 * (index % 3); ++i) prompt += "and the word was " + std::to_string(i);
  return nlohmann::json({{"model", "tiny-kjv"},
                         {"prompt", prompt},
                         {"max_tokens", 12},
                         {"temperature", 0.8},
                         {"seed", index},
                         {"ignore_eos", true},
                         {"stream", stream}})
      .dump();
}

class OneProcessTest : public ::testing::Test {
 protected:
  OneProcessTest() {
    prefill_ = *WorkerProcess<PrefillProgram>::Start({.worker = SmallWorker("prefill")});
    for (const char* name : {"decode-0", "decode-1"}) {
      decode_.push_back(*WorkerProcess<DecodeProgram>::Start({.worker = SmallWorker(name)}));
    }
    RouterConfig config;
    config.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
    config.prefill = {Ready("prefill")["address"]};
    config.decode = {Ready("decode-0")["address"], Ready("decode-1")["address"]};
    config.http_port = 0;
    config.grpc_port = 0;
    config.drain_timeout_s = 20;
    config.ready_file = ReadyFile("router");
    router_ = *RouterProcess::Start(config);
    const std::string url = Ready("router")["http_url"];
    port_ = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
    // The health service would tell; here each look is one more call from another thread.
    while (http::TestClient(port_).Get("/ready").status != 200) {
    }
  }

  std::string Text(int index) const {
    const http::WireResponse answer =
        http::TestClient(port_).Post("/v1/completions", Body(index, /*stream=*/false));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return nlohmann::json::parse(answer.body)["choices"][0]["text"];
  }

  // The pieces of a streamed answer put together.
  std::string StreamedText(int index) const {
    const http::WireResponse answer =
        http::TestClient(port_).Post("/v1/completions", Body(index, /*stream=*/true));
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::string text;
    size_t at = 0;
    while ((at = answer.body.find("data: {", at)) != std::string::npos) {
      const size_t end = answer.body.find('\n', at);
      const auto event = nlohmann::json::parse(answer.body.substr(at + 6, end - at - 6));
      EXPECT_FALSE(event.contains("error")) << event;
      if (event.contains("choices")) text += event["choices"][0]["text"];
      at = end;
    }
    return text;
  }

  // Clients in threads of their own, each of which compares its answers with the expected ones.
  std::vector<std::jthread> StartClients(const std::vector<std::string>& expected) const {
    std::vector<std::jthread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([this, &expected, c] {
        for (int r = 0; r < kRequestsPerClient; ++r) {
          const int index = (c + r) % static_cast<int>(expected.size());
          EXPECT_EQ(StreamedText(index), expected[index]);
          http::TestClient leaving(port_);
          leaving.SendPost("/v1/completions", Body(index, /*stream=*/true));
          if (r % 2 == 0) leaving.ReadSome();
        }
      });
    }
    return clients;
  }

  std::unique_ptr<WorkerProcess<PrefillProgram>> prefill_;
  std::vector<std::unique_ptr<WorkerProcess<DecodeProgram>>> decode_;
  std::unique_ptr<RouterProcess> router_;
  uint16_t port_ = 0;
};

TEST_F(OneProcessTest, StreamsOfConcurrentClientsAreRightWhileOthersLeaveAndAllIsLookedAt) {
  std::vector<std::string> expected;
  for (int i = 0; i < kRequestsPerClient; ++i) expected.push_back(Text(i));
  {
    const std::vector<std::jthread> clients = StartClients(expected);
    const std::jthread watcher([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (const char* path : {"/metrics", "/status", "/audit", "/ready"}) {
          EXPECT_EQ(http::TestClient(port_).Get(path).status, 200) << path;
        }
      }
    });
  }
  router_->Drain([] { return false; });
  prefill_->Drain([] { return false; });
  for (auto& decode : decode_) decode->Drain([] { return false; });
}

TEST_F(OneProcessTest, StreamsGoOnWhenOneDecodeWorkerIsTakenAwayInTheMiddle) {
  std::vector<std::string> expected;
  for (int i = 0; i < kRequestsPerClient; ++i) expected.push_back(Text(i));
  const std::vector<std::jthread> clients = StartClients(expected);
  EXPECT_EQ(StreamedText(0), expected[0]);
  decode_[0].reset();  // As a crash: nothing is drained.
}

}  // namespace
}  // namespace baton
