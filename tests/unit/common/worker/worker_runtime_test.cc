#include "common/worker/worker_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "common/kv_cache/kv_layout.h"
#include "common/rpc/worker_links.h"
#include "nlohmann/json.hpp"
#include "tests/unit/common/http/test_client.h"
#include "tests/unit/common/rpc/fake_inbox.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";

// Drains when told to, and is otherwise idle.
template <typename Mail = DecodeMail>
class IdleNode : public Node<Mail> {
 public:
  void Handle(Mail mail, Time) override {
    draining |= std::holds_alternative<Drain>(mail);
  }
  void Step(Time) override {}
  Time NextDeadline() const override { return kNever; }
  bool draining = false;
};

WorkerConfig SmallConfig() {
  WorkerConfig config;
  config.model = kModel;
  config.threads = 1;
  config.num_blocks = 64;
  config.log_level = "error";
  return config;
}

TEST(WorkerRuntimeTest, ServesUntilDrainedAndSaysWhereItListens) {
  WorkerConfig config = SmallConfig();
  config.ready_file = ::testing::TempDir() + "/baton-worker-runtime-test.json";
  IdleNode<> node;  // Outlives the runtime.
  auto runtime = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const WorkerParts parts = (*runtime)->parts();
  EXPECT_NE(parts.incarnation, 0u);
  EXPECT_EQ(parts.allocator.num_blocks(), 64);
  EXPECT_EQ(parts.model.vocab_size, 4096);
  ASSERT_TRUE((*runtime)
                  ->Serve(&node,
                          [&node] {
                            WorkerSnapshot snapshot;
                            snapshot.status.draining = node.draining;
                            return snapshot;
                          })
                  .ok());
  std::ifstream in(config.ready_file);
  const nlohmann::json ready = nlohmann::json::parse(in);
  EXPECT_EQ(ready["role"], "decode");
  EXPECT_EQ(ready["data_addresses"], nlohmann::json({(*runtime)->DataRanks()[0].endpoint}));
  (*runtime)->Drain([] { return false; });
  EXPECT_TRUE(node.draining);
}

nlohmann::json ReadyFileOf(const WorkerConfig& config) {
  std::ifstream in(config.ready_file);
  return nlohmann::json::parse(in);
}

uint16_t PortOf(const std::string& address) {
  const std::string host_and_port = address.substr(0, address.find("/metrics"));
  return static_cast<uint16_t>(std::stoi(host_and_port.substr(host_and_port.rfind(':') + 1)));
}

// Steps every 20 ms, so that what it shows is seen.
class TickingNode : public IdleNode<> {
 public:
  void Step(Time now) override { next_ = now + std::chrono::milliseconds(20); }
  Time NextDeadline() const override { return next_; }

 private:
  Time next_{};
};

TEST(WorkerRuntimeTest, ShowsEachNumberOfItsNodeAtMetrics) {
  WorkerConfig config = SmallConfig();
  config.ready_file = ::testing::TempDir() + "/baton-worker-runtime-test-metrics.json";
  IdleNode<PrefillMail> node;  // Outlives the runtime, as what it shows.
  WorkerSnapshot shown{.counted = {.calls = 101,
                                   .refused = 102,
                                   .duplicates = 116,
                                   .stale_mail = 117,
                                   .prompt_tokens = 103,
                                   .cached_tokens = 104,
                                   .handoffs = 118,
                                   .handoffs_failed = 119},
                       .preemptions = 105,
                       .own = {{"rebinds", 106}, {"sends", 107}}};
  shown.status.blocks = {.free = 10, .reserved = 11, .filling = 12, .ready = 13, .cached = 14,
                         .draining = 15};
  shown.status.running = 108;
  shown.status.waiting = 109;
  shown.status.queued_tokens = 300;
  shown.status.tokens_per_s = 120;
  auto runtime = WorkerRuntime::Create(config, Role::kPrefill);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ASSERT_TRUE((*runtime)->Serve(&node, [&] { return shown; }).ok());
  http::TestClient client(PortOf(ReadyFileOf(config)["metrics_url"]));
  const std::string text = client.Get("/metrics").body;
  for (const char* line :
       {"baton_kv_blocks{state=\"free\"} 10", "baton_kv_blocks{state=\"reserved\"} 11",
        "baton_kv_blocks{state=\"filling\"} 12", "baton_kv_blocks{state=\"ready\"} 13",
        "baton_kv_blocks{state=\"cached\"} 14", "baton_kv_blocks{state=\"draining\"} 15",
        "baton_kv_cache_usage_ratio 0.68", "baton_requests_running{role=\"prefill\"} 108",
        "baton_requests_waiting{stage=\"prefill\"} 109",
        "baton_prefix_cache_queries_tokens_total 103", "baton_prefix_cache_hits_tokens_total 104",
        "baton_prompt_backlog_seconds 2.5", "baton_preemptions_total 105",
        "baton_calls_total 101", "baton_calls_refused_total 102",
        "baton_duplicate_calls_total 116", "baton_stale_mail_total 117",
        "baton_handoffs_total 118", "baton_handoffs_failed_total 119",
        "baton_rebinds_total 106", "baton_sends_total 107", "role=\"prefill\",version="}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(client.Get("/health").body, "{\"status\":\"alive\"}\n");
}

TEST(WorkerRuntimeTest, IsAliveUntilAStepStandsStillAndAgainWhenItGoesOn) {
  WorkerConfig config = SmallConfig();
  config.ready_file = ::testing::TempDir() + "/baton-worker-runtime-test-alive.json";
  TickingNode node;  // Outlives the runtime, as what it shows.
  std::atomic<bool> stands_still = false;
  auto runtime = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  ASSERT_TRUE(
      (*runtime)->Serve(&node, [&] { return WorkerSnapshot{.stands_still = stands_still}; }).ok());
  http::TestClient client(PortOf(ReadyFileOf(config)["metrics_url"]));
  const auto becomes = [&](int status) {
    for (int tries = 0; tries < 500; ++tries) {
      if (client.Get("/health").status == status) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  };
  EXPECT_TRUE(becomes(200));
  stands_still = true;
  EXPECT_TRUE(becomes(503));
  EXPECT_EQ(client.Get("/health").body, "{\"status\":\"a step stands still\"}\n");
  stands_still = false;
  EXPECT_TRUE(becomes(200));
}

TEST(WorkerRuntimeTest, SaysHelloWithNoMoreThanItsPoolHolds) {
  WorkerConfig config = SmallConfig();
  config.num_blocks = 3;
  config.block_size = 8;
  config.advertise_data_address = "127.0.0.9:99";
  config.ready_file = ::testing::TempDir() + "/baton-worker-runtime-test-hello.json";
  IdleNode<> node;  // Outlives the runtime.
  auto runtime = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->DataRanks()[0].endpoint, "127.0.0.9:99");
  ASSERT_TRUE((*runtime)->Serve(&node, [] { return WorkerSnapshot(); }).ok());
  FakeInbox<RouterMail> inbox;
  WorkerLinks links({.workers = {{Role::kDecode, ReadyFileOf(config)["address"]}}}, &inbox);
  links.Start();
  const auto up = inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->hello.max_model_len, 24);
  EXPECT_EQ(up->hello.num_blocks, 3);
  EXPECT_EQ(up->hello.block_size, 8);
  EXPECT_EQ(up->hello.vocab_size, 4096);
  EXPECT_EQ(up->hello.incarnation, (*runtime)->parts().incarnation);
  EXPECT_EQ(up->hello.model_digest, (*runtime)->parts().model.model_digest);
  EXPECT_EQ(up->hello.numerics_id, (*runtime)->parts().model.numerics_id);
  EXPECT_EQ(up->hello.layout_digest, LayoutDigest((*runtime)->parts().model.layout));
  links.Stop();
}

TEST(WorkerRuntimeTest, EachRankIsReachedAtAnAddressOfItsOwn) {
  WorkerConfig config = SmallConfig();
  config.tp = 2;
  config.advertise_data_address = "127.0.0.9:99";
  const auto runtime = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->DataRanks(),
            (std::vector<DataRank>{{"127.0.0.9:99", {0, 1}}, {"127.0.0.9:100", {1, 1}}}));
}

TEST(WorkerRuntimeTest, ThePoolHoldsSomeOfTheLongestSequencesUnlessSaidOtherwise) {
  WorkerConfig config = SmallConfig();
  config.num_blocks = 0;
  config.max_model_len = 100;
  config.block_size = 16;
  config.preemption = "swap";
  auto runtime = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->parts().allocator.num_blocks(), 32 * 7);
  EXPECT_EQ((*runtime)->parts().engine.swap_blocks, 32 * 7);
  EXPECT_EQ((*runtime)->parts().model.max_model_len, 100);
  config.swap_blocks = 5;
  EXPECT_EQ((*WorkerRuntime::Create(config, Role::kDecode))->parts().engine.swap_blocks, 5);
  config.preemption = "recompute";
  EXPECT_EQ((*WorkerRuntime::Create(config, Role::kDecode))->parts().engine.swap_blocks, 0);
}

TEST(WorkerRuntimeTest, LayersInGroupsMakeAPoolOfBlocksForEachAndAreSwapped) {
  WorkerConfig config = SmallConfig();
  config.model = BATON_SOURCE_DIR "/tests/golden/models/gemma2";
  const auto decode = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ((*decode)->parts().allocator.num_groups(), 3);
  EXPECT_EQ((*decode)->parts().allocator.num_blocks(), 3 * 64);
  EXPECT_EQ((*decode)->parts().engine.swap_blocks, 3 * 64);
  const auto prefill = WorkerRuntime::Create(config, Role::kPrefill);
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ((*prefill)->parts().engine.swap_blocks, 0);
  config.preemption = "recompute";
  EXPECT_EQ((*WorkerRuntime::Create(config, Role::kDecode))->parts().engine.swap_blocks, 0);
  config.model = BATON_SOURCE_DIR "/tests/golden/models/mistral-window";
  config.preemption = "auto";
  EXPECT_EQ((*WorkerRuntime::Create(config, Role::kDecode))->parts().engine.swap_blocks, 0);
}

TEST(WorkerRuntimeTest, ADrainWaitsForWhatRunsUntilItsLimitOrUntilItIsHurried) {
  WorkerConfig config = SmallConfig();
  for (const char* ended_by : {"idle", "limit", "hurry"}) {
    config.drain_timeout_s = ended_by == std::string("limit") ? 1 : 600;
    TickingNode node;  // Outlives the runtime, as the next two.
    std::atomic<bool> idle = false;
    std::atomic<bool> hurry = false;
    auto runtime = WorkerRuntime::Create(config, Role::kDecode);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    ASSERT_TRUE((*runtime)
                    ->Serve(&node,
                            [&] {
                              WorkerSnapshot snapshot{.idle = idle};
                              snapshot.status.draining = node.draining;
                              return snapshot;
                            })
                    .ok());
    std::atomic<bool> drained = false;
    const absl::Time begin = absl::Now();
    std::jthread draining([&] {
      (*runtime)->Drain([&] { return hurry.load(); });
      drained = true;
    });
    absl::SleepFor(absl::Milliseconds(400));
    if (config.drain_timeout_s > 1) {
      EXPECT_FALSE(drained) << ended_by;
    }
    idle = ended_by == std::string("idle");
    hurry = ended_by == std::string("hurry");
    draining.join();
    EXPECT_GE(absl::Now() - begin, absl::Milliseconds(config.drain_timeout_s > 1 ? 400 : 900));
  }
}

TEST(WorkerRuntimeTest, APortThatIsTakenIsNamedByItsOption) {
  WorkerConfig config = SmallConfig();
  config.ready_file = ::testing::TempDir() + "/baton-worker-runtime-test-ports.json";
  IdleNode<> node;  // Outlives the runtime.
  auto first = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->Serve(&node, [] { return WorkerSnapshot(); }).ok());
  const nlohmann::json ready = ReadyFileOf(config);
  WorkerConfig second = SmallConfig();
  second.data_port = std::to_string(PortOf(ready["data_addresses"][0]));
  EXPECT_THAT(std::string(WorkerRuntime::Create(second, Role::kDecode).status().message()),
              HasSubstr("--data-port"));
  for (const char* option : {"--metrics-port", "--port"}) {
    WorkerConfig taken = SmallConfig();
    taken.metrics_port = option == std::string("--port") ? 0 : PortOf(ready["metrics_url"]);
    taken.port = option == std::string("--port") ? PortOf(ready["address"]) : 0;
    auto runtime = WorkerRuntime::Create(taken, Role::kDecode);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    IdleNode<> other;  // Serve has let go of it.
    const absl::Status status = (*runtime)->Serve(&other, [] { return WorkerSnapshot(); });
    EXPECT_THAT(std::string(status.message()), HasSubstr(option));
  }
}

TEST(WorkerRuntimeTest, APairsKeyDependsOnTheSender) {
  auto runtime = WorkerRuntime::Create(SmallConfig(), Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  EXPECT_EQ((*runtime)->KeyOf(1), (*runtime)->KeyOf(1));
  EXPECT_NE((*runtime)->KeyOf(1), (*runtime)->KeyOf(2));
}

TEST(WorkerRuntimeTest, RefusesToStartByNameOfTheOption) {
  WorkerConfig no_model = SmallConfig();
  no_model.model = "/nonexistent";
  const absl::Status missing = WorkerRuntime::Create(no_model, Role::kPrefill).status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--model /nonexistent"));
  WorkerConfig too_long = SmallConfig();
  too_long.max_model_len = 1 << 20;
  const absl::Status length = WorkerRuntime::Create(too_long, Role::kPrefill).status();
  EXPECT_THAT(std::string(length.message()), HasSubstr("--max-model-len 1048576"));
}

}  // namespace
}  // namespace baton
