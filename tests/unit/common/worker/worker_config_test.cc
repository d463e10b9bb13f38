#include "common/worker/worker_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(WorkerConfigTest, DefaultsAreValidOnceAModelIsNamed) {
  WorkerConfig config;
  EXPECT_FALSE(config.Validate().ok());
  config.model = "somewhere";
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

void SetBeyondLoopback(WorkerConfig* config) {
  config->host = "10.0.0.1";
  config->tls_dir = "certs";
}

TEST(WorkerConfigTest, BeyondLoopbackIsServedWithTls) {
  WorkerConfig config;
  config.model = "somewhere";
  SetBeyondLoopback(&config);
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
  config.host = "0.0.0.0";
  EXPECT_FALSE(config.Validate().ok());
  config.advertise_data_address = "10.0.0.1:7001";
  EXPECT_TRUE(config.Validate().ok()) << config.Validate();
}

TEST(WorkerConfigTest, KvIsSealedBeyondLoopbackUnlessItIsSaidOtherwise) {
  WorkerConfig config;
  EXPECT_FALSE(config.kv_tls());
  config.kv_security = "tls";
  EXPECT_TRUE(config.kv_tls());
  SetBeyondLoopback(&config);
  config.kv_security = "";
  EXPECT_TRUE(config.kv_tls());
  config.kv_security = "authenticated";
  EXPECT_FALSE(config.kv_tls());
}

TEST(WorkerConfigTest, KnowsThreeWaysForKv) {
  WorkerConfig config;
  config.model = "somewhere";
  for (const char* transport : {"auto", "tcp", "nccl"}) {
    config.kv_transport = transport;
    EXPECT_TRUE(config.Validate().ok()) << config.Validate();
  }
}

TEST(WorkerConfigTest, NamesTheOptionOfEachWrongValue) {
  struct Case {
    const char* option;
    std::function<void(WorkerConfig*)> break_it;
  };
  const Case cases[] = {
      {"--model", [](auto* c) { c->model = ""; }},
      {"--host 0.0.0.0", [](auto* c) { c->host = "0.0.0.0"; }},
      {"--tls-dir is needed", [](auto* c) { SetBeyondLoopback(c); c->tls_dir = ""; }},
      {"--kv-security none", [](auto* c) { c->kv_security = "none"; }},
      {"--port 70000", [](auto* c) { c->port = 70000; }},
      {"--data-port -1", [](auto* c) { c->data_port = "-1"; }},
      {"--tp 3: must be one of 1, 2, 4, 8", [](auto* c) { c->tp = 3; }},
      {"--tp 0: must be one of 1, 2, 4, 8", [](auto* c) { c->tp = 0; }},
      {"--tp 16: must be one of 1, 2, 4, 8", [](auto* c) { c->tp = 16; }},
      {"--data-port 5,6: has 2 ports; give one of each rank of --tp 1",
       [](auto* c) { c->data_port = "5,6"; }},
      {"--advertise-data-address h:1,h:2: has 2 addresses; give one of each rank of --tp 4",
       [](auto* c) {
         c->tp = 4;
         c->advertise_data_address = "h:1,h:2";
       }},
      {"--advertise-data-address proxy", [](auto* c) { c->advertise_data_address = "proxy"; }},
      {"--kv-transport rdma: must be one of auto, tcp, nccl",
       [](auto* c) { c->kv_transport = "rdma"; }},
      {"--kv-transport : must be one of auto, tcp, nccl",
       [](auto* c) { c->kv_transport = ""; }},
      {"--metrics-port", [](auto* c) { c->metrics_port = 65536; }},
      {"--device gpu", [](auto* c) { c->device = "gpu"; }},
      {"--device cuda:", [](auto* c) { c->device = "cuda:"; }},
      {"--device cuda:-1", [](auto* c) { c->device = "cuda:-1"; }},
      {"--device cuda:1x", [](auto* c) { c->device = "cuda:1x"; }},
      {"--device cuda:99999999999", [](auto* c) { c->device = "cuda:99999999999"; }},
      {"--gpu-memory-fraction 0", [](auto* c) { c->gpu_memory_fraction = 0; }},
      {"--gpu-memory-fraction 1.5", [](auto* c) { c->gpu_memory_fraction = 1.5; }},
      {"--gpu-graphs auto: must be one of on, off", [](auto* c) { c->gpu_graphs = "auto"; }},
      {"--gpu-memory-fraction nan", [](auto* c) { c->gpu_memory_fraction = std::nan(""); }},
      {"--compute-dtype f8", [](auto* c) { c->compute_dtype = "f8"; }},
      {"--kv-dtype int8", [](auto* c) { c->kv_dtype = "int8"; }},
      {"--kernels gpu", [](auto* c) { c->kernels = "gpu"; }},
      {"--threads", [](auto* c) { c->threads = -1; }},
      {"--compute-nice 20", [](auto* c) { c->compute_nice = 20; }},
      {"--compute-nice -1", [](auto* c) { c->compute_nice = -1; }},
      {"--preemption drop", [](auto* c) { c->preemption = "drop"; }},
      {"--swap-blocks -1", [](auto* c) { c->swap_blocks = -1; }},
      {"--block-size 1025", [](auto* c) { c->block_size = 1025; }},
      {"--block-size 0", [](auto* c) { c->block_size = 0; }},
      {"--num-blocks", [](auto* c) { c->num_blocks = -5; }},
      {"--max-model-len", [](auto* c) { c->max_model_len = -1; }},
      {"--chunk-tokens 0", [](auto* c) { c->chunk_tokens = 0; }},
      {"--max-batch-sequences 0", [](auto* c) { c->max_batch_sequences = 0; }},
      {"--step-budget-ms 0", [](auto* c) { c->step_budget_ms = 0; }},
      {"--max-queued-requests 0", [](auto* c) { c->max_queued_requests = 0; }},
      {"--drain-timeout-s -1", [](auto* c) { c->drain_timeout_s = -1; }},
      {"--log-level loud", [](auto* c) { c->log_level = "loud"; }},
  };
  for (const Case& c : cases) {
    WorkerConfig config;
    config.model = "somewhere";
    c.break_it(&config);
    const absl::Status status = config.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.option;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.option));
  }
}

TEST(WorkerConfigTest, TypesOfTheCacheAreReadByName) {
  const auto read = [](const std::string& text) {
    return ParseKvDType("--kv-dtype", text, DType::kBF16);
  };
  for (const char* as_computed : {"", "auto"}) EXPECT_EQ(*read(as_computed), DType::kBF16);
  EXPECT_EQ(*read("f32"), DType::kF32);
  EXPECT_EQ(*read("f16"), DType::kF16);
  EXPECT_EQ(*read("bf16"), DType::kBF16);
  EXPECT_EQ(*read("fp8_e4m3"), DType::kFp8E4M3);
  EXPECT_EQ(*read("fp8_e5m2"), DType::kFp8E5M2);
  EXPECT_FALSE(read("F32").ok());
  EXPECT_FALSE(ParseDType("--compute-dtype", "fp8_e4m3").ok());  // Only what is stored may be.
}

TEST(WorkerConfigTest, EveryFlagReachesItsField) {
  WorkerConfig config;
  CLI::App app;
  AddWorkerOptions(app, config);
  app.parse(
      "--model m --host 127.0.0.2 --port 1 --data-port 2,3 --tp 2 --metrics-port 3 "
      "--compute-dtype bf16 "
      "--advertise-data-address 127.0.0.3:4 "
      "--kv-dtype f32 --kernels portable --threads 4 --compute-nice 13 --block-size 5 "
      "--num-blocks 6 "
      "--max-model-len 7 --chunk-tokens 8 --max-batch-sequences 9 --step-budget-ms 10 "
      "--preemption swap --swap-blocks 14 --max-queued-requests 11 --drain-timeout-s 12 "
      "--ready-file r --log-level error");
  EXPECT_EQ(config.model, "m");
  EXPECT_EQ(config.host, "127.0.0.2");
  EXPECT_EQ(config.port, 1);
  EXPECT_EQ(config.data_port, "2,3");
  EXPECT_EQ(config.tp, 2);
  EXPECT_EQ(config.metrics_port, 3);
  EXPECT_EQ(config.advertise_data_address, "127.0.0.3:4");
  EXPECT_EQ(config.compute_dtype, "bf16");
  EXPECT_EQ(config.kv_dtype, "f32");
  EXPECT_EQ(config.kernels, "portable");
  EXPECT_EQ(config.threads, 4);
  EXPECT_EQ(config.compute_nice, 13);
  EXPECT_EQ(config.block_size, 5);
  EXPECT_EQ(config.num_blocks, 6);
  EXPECT_EQ(config.max_model_len, 7);
  EXPECT_EQ(config.chunk_tokens, 8);
  EXPECT_EQ(config.max_batch_sequences, 9);
  EXPECT_EQ(config.step_budget_ms, 10);
  EXPECT_EQ(config.preemption, "swap");
  EXPECT_EQ(config.swap_blocks, 14);
  EXPECT_EQ(config.max_queued_requests, 11);
  EXPECT_EQ(config.drain_timeout_s, 12);
  EXPECT_EQ(config.ready_file, "r");
  EXPECT_EQ(config.log_level, "error");
}

}  // namespace
}  // namespace baton
