#include "deploy/cli/launch_plan.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string Line(const ProcessSpec& spec) {
  return spec.program + " " + absl::StrJoin(spec.arguments, " ");
}

TEST(PlanTlsTest, EachServerGetsTheCertificatesOfItsRole) {
  UpOptions options{.dir = "/run/x"};
  for (const bool tls : {false, true}) {
    options.tls = tls;
    std::vector<ProcessSpec> specs = PlanWorkers(options, "/bin", RunDir("/run/x"), 2);
    specs.push_back(PlanRouter(options, "/bin", RunDir("/run/x"), {}));
    for (const ProcessSpec& spec : specs) {
      const auto option = std::find(spec.arguments.begin(), spec.arguments.end(), "--tls-dir");
      ASSERT_EQ(option != spec.arguments.end(), tls) << spec.name;
      if (tls) {
        EXPECT_EQ(*(option + 1), "/run/x/certs/" + spec.role);
      }
      const bool has_admin = Line(spec).find(" --admin-port 0") != std::string::npos;
      EXPECT_EQ(has_admin, tls && spec.role == "router") << spec.name;
    }
  }
}

TEST(LaunchPlanTest, WorkersOfARoleShareTheCoresAndGetTheOptions) {
  const UpOptions options{
      .model = "/m", .prefill = 1, .decode = 2, .compute_dtype = "f32", .block_size = 8};
  const auto specs = PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/7);
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_THAT(Line(specs[0]), testing::StartsWith("/bin/baton-prefill --model /m"));
  EXPECT_THAT(Line(specs[2]), testing::StartsWith("/bin/baton-decode --model /m"));
  EXPECT_THAT(Line(specs[2]), HasSubstr("--ready-file /run/ready/decode-1.json"));
  EXPECT_THAT(Line(specs[0]), HasSubstr("--threads 7"));
  EXPECT_THAT(Line(specs[1]), HasSubstr("--threads 3"));
  for (const ProcessSpec& spec : specs) {
    EXPECT_THAT(Line(spec), HasSubstr("--compute-dtype f32"));
    EXPECT_THAT(Line(spec), HasSubstr("--block-size 8"));
    EXPECT_THAT(Line(spec), Not(HasSubstr("--num-blocks")));
  }
}

TEST(LaunchPlanTest, EveryOptionReachesItsServers) {
  UpOptions options{.model = "/m", .http_port = 5, .grpc_port = 6, .ops_port = 7};
  options.kv_dtype = "fp8_e4m3";
  options.kernels = "portable";
  options.num_blocks = 11;
  options.chunk_tokens = 12;
  options.max_batch_sequences = 15;
  options.gpu_graphs = "off";
  options.kv_transport = "tcp";
  options.preemption = "swap";
  options.threads = 13;
  options.served_model_name = "kjv";
  options.max_model_len = 14;
  for (const ProcessSpec& spec : PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2)) {
    EXPECT_THAT(Line(spec),
                HasSubstr("--kv-dtype fp8_e4m3 --kernels portable --num-blocks 11 "
                          "--chunk-tokens 12 --max-batch-sequences 15 --preemption swap "
                          "--max-model-len 14"));
    EXPECT_THAT(Line(spec), HasSubstr("--gpu-graphs off"));
    EXPECT_THAT(Line(spec), HasSubstr("--kv-transport tcp"));
    EXPECT_THAT(Line(spec), HasSubstr("--threads 13 --drain-timeout-s 8"));
    EXPECT_THAT(Line(spec), HasSubstr("--port 0 --data-port 0 --metrics-port 0"));
  }
  EXPECT_THAT(Line(PlanRouter(options, "/bin", RunDir("/run"), {})),
              HasSubstr("--http-port 5 --grpc-port 6 --ops-port 7 "
                        "--ready-file /run/ready/router.json --drain-timeout-s 8 "
                        "--served-model-name kjv --max-model-len 14"));
}

TEST(LaunchPlanTest, EachRoleGetsItsOwnOptions) {
  const UpOptions options{.model = "/m", .finish_together = 3, .steps_in_flight = 1};
  for (const ProcessSpec& spec : PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2)) {
    const bool decodes = spec.role == "decode";
    EXPECT_EQ(Line(spec).find("--steps-in-flight 1") != std::string::npos, decodes) << Line(spec);
    EXPECT_EQ(Line(spec).find("--finish-together 3") != std::string::npos, !decodes) << Line(spec);
  }
  EXPECT_THAT(UpOptions{.steps_in_flight = 3}.Validate().ToString(),
              HasSubstr("--steps-in-flight 3"));
}

TEST(LaunchPlanTest, WorkersShareTheMemoryOfAGpu) {
  UpOptions options{.model = "/m", .prefill = 1, .decode = 3};
  const auto lines_have = [&options](const std::string& text) {
    for (const ProcessSpec& spec : PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2)) {
      EXPECT_THAT(Line(spec), HasSubstr(text));
    }
  };
  lines_have("--gpu-memory-fraction 0.225");  // By themselves they may take one.
  options.device = "cuda:1";
  options.gpu_memory_fraction = 0.5;
  lines_have("--device cuda:1 --gpu-memory-fraction 0.125");
  options.device = "cpu";
  for (const ProcessSpec& spec : PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2)) {
    EXPECT_THAT(Line(spec), Not(HasSubstr("--gpu-memory-fraction")));
  }
  for (const double wrong : {0.0, -1.0, 1.01, std::nan("")}) {
    options.gpu_memory_fraction = wrong;
    EXPECT_THAT(std::string(options.Validate().message()),
                HasSubstr("--gpu-memory-fraction")) << wrong;
  }
}

TEST(LaunchPlanTest, APortIsTheWantedOneOrAnyThatIsFree) {
  const int holder = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(holder, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(holder, 1), 0);
  ASSERT_EQ(getsockname(holder, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int port = ntohs(address.sin_port);
  EXPECT_THAT(ChoosePort(port, 0, "--http").status().ToString(),
              HasSubstr("--http " + std::to_string(port) + ": the port is in use"));
  EXPECT_EQ(*ChoosePort(std::nullopt, port, "--http"), 0);
  EXPECT_EQ(*ChoosePort(0, port, "--http"), 0);
  close(holder);
  EXPECT_EQ(*ChoosePort(port, 0, "--http"), port);
  EXPECT_EQ(*ChoosePort(std::nullopt, port, "--http"), port);
}

ServerRecord Worker(const std::string& role, const std::string& address) {
  ServerRecord record;
  record.role = role;
  record.address = address;
  return record;
}

TEST(LaunchPlanTest, RouterIsToldEveryWorkerByRole) {
  const UpOptions options{.model = "/m", .http_port = 0, .policy = "least_loaded"};
  const std::vector<ServerRecord> workers = {Worker("prefill", "h:1"), Worker("decode", "h:2"),
                                             Worker("decode", "h:3")};
  const std::string line = Line(PlanRouter(options, "/bin", RunDir("/run"), workers));
  EXPECT_THAT(line, HasSubstr("--prefill h:1 --decode h:2 --decode h:3"));
  EXPECT_THAT(line, HasSubstr("--http-port 0"));
  EXPECT_THAT(line, HasSubstr("--policy least_loaded"));
}

TEST(LaunchPlanTest, OnlyPrefillWorkersAreToldHowManyPromptsFinishTogether) {
  const UpOptions options{.model = "/m", .finish_together = 3};
  const auto workers = PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2);
  EXPECT_THAT(Line(workers[0]), HasSubstr("--finish-together 3"));
  EXPECT_THAT(Line(workers[1]), Not(HasSubstr("--finish-together")));
}

TEST(LaunchPlanTest, AnUnknownWayForKvIsRefusedBeforeAnythingStarts) {
  EXPECT_THAT(UpOptions{.kv_transport = "rdma"}.Validate().ToString(),
              HasSubstr("--kv-transport rdma: must be one of auto, tcp, nccl"));
}

TEST(LaunchPlanTest, WorkersHaveTheRanksOfTheirRole) {
  const auto plan = [](const UpOptions& options) {
    std::vector<std::string> lines;
    for (const ProcessSpec& spec : PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2)) {
      lines.push_back(Line(spec));
    }
    return lines;
  };
  for (const std::string& line : plan({.model = "/m"})) EXPECT_THAT(line, Not(HasSubstr("--tp")));
  for (const std::string& line : plan({.model = "/m", .tp = 4})) {
    EXPECT_THAT(line, HasSubstr(" --tp 4"));
  }
  const auto lines = plan({.model = "/m", .tp = 4, .tp_prefill = 1, .tp_decode = 8});
  EXPECT_THAT(lines[0], HasSubstr(" --tp 1"));
  EXPECT_THAT(lines[1], HasSubstr(" --tp 8"));
  EXPECT_THAT(plan({.model = "/m", .tp_prefill = 2})[0], HasSubstr(" --tp 2"));
  EXPECT_THAT(plan({.model = "/m", .tp_prefill = 2})[1], Not(HasSubstr("--tp")));
}

TEST(LaunchPlanTest, RestartedServersKeepTheirPorts) {
  const UpOptions options{.model = "/m", .http_port = 0, .grpc_port = 0, .ops_port = 0};
  ServerRecord record = Worker("decode", "127.0.0.1:11");
  record.data_addresses = {"127.0.0.1:12", "127.0.0.1:15"};
  record.metrics_url = "http://127.0.0.1:13/metrics";
  const ProcessSpec worker = PlanWorkers(options, "/bin", RunDir("/run"), /*cores=*/2)[1];
  EXPECT_THAT(Line(WithPortsOf(record, worker)),
              HasSubstr("--port 11 --data-port 12,15 --metrics-port 13 --ready-file"));
  record.http_url = "http://127.0.0.1:14";
  const ProcessSpec router = PlanRouter(options, "/bin", RunDir("/run"), {record});
  EXPECT_THAT(Line(WithPortsOf(record, router)),
              HasSubstr("--http-port 14 --grpc-port 11 --ops-port 13"));
}

TEST(LaunchPlanTest, OptionsOutOfRangeAreNamed) {
  EXPECT_THAT(UpOptions{.prefill = 0}.Validate().ToString(), HasSubstr("--prefill 0"));
  EXPECT_THAT(UpOptions{.tp = 3}.Validate().ToString(),
              HasSubstr("--tp 3: must be one of 1, 2, 4, 8"));
  EXPECT_THAT(UpOptions{.tp_prefill = 0}.Validate().ToString(), HasSubstr("--tp-prefill 0"));
  EXPECT_THAT(UpOptions{.tp_decode = 16}.Validate().ToString(), HasSubstr("--tp-decode 16"));
  EXPECT_THAT(UpOptions{.decode = 65}.Validate().ToString(), HasSubstr("--decode 65"));
  EXPECT_THAT(UpOptions{.finish_together = -1}.Validate().ToString(),
              HasSubstr("--finish-together -1"));
  EXPECT_THAT(UpOptions{.http_port = 65536}.Validate().ToString(), HasSubstr("--http 65536"));
  EXPECT_THAT(UpOptions{.grpc_port = -1}.Validate().ToString(), HasSubstr("--grpc -1"));
  EXPECT_THAT(UpOptions{.ops_port = 65536}.Validate().ToString(), HasSubstr("--ops 65536"));
  EXPECT_THAT(UpOptions{.start_timeout_s = 0}.Validate().ToString(),
              HasSubstr("--start-timeout-s 0"));
  EXPECT_THAT(UpOptions{.block_size = 0}.Validate().ToString(), HasSubstr("--block-size 0"));
  EXPECT_THAT(UpOptions{.num_blocks = 0}.Validate().ToString(), HasSubstr("--num-blocks 0"));
  EXPECT_THAT(UpOptions{.max_batch_sequences = 0}.Validate().ToString(),
              HasSubstr("--max-batch-sequences 0"));
  EXPECT_THAT(UpOptions{.chunk_tokens = 0}.Validate().ToString(), HasSubstr("--chunk-tokens 0"));
  EXPECT_THAT(UpOptions{.threads = 0}.Validate().ToString(), HasSubstr("--threads 0"));
  EXPECT_THAT(UpOptions{.max_model_len = 0}.Validate().ToString(), HasSubstr("--max-model-len 0"));
  EXPECT_THAT(UpOptions{.dir = ""}.Validate().ToString(), HasSubstr("--dir"));
  EXPECT_THAT((UpOptions{.http_port = 5, .grpc_port = 5}.Validate().ToString()),
              HasSubstr("both 5"));
  EXPECT_THAT((UpOptions{.http_port = 5, .ops_port = 5}.Validate().ToString()),
              HasSubstr("--http and --ops are both 5"));
  EXPECT_THAT((UpOptions{.grpc_port = 5, .ops_port = 5}.Validate().ToString()),
              HasSubstr("--grpc and --ops are both 5"));
  EXPECT_TRUE((UpOptions{.http_port = 0, .grpc_port = 0, .ops_port = 0}.Validate().ok()));
}

TEST(LaunchPlanTest, HalfWrittenReadyFileIsNotReady) {
  const std::string path = testing::TempDir() + "/ready.json";
  std::filesystem::remove(path);
  EXPECT_EQ(ReadReadyFile(path).status().code(), absl::StatusCode::kUnavailable);
  std::ofstream(path) << R"({"address": "127.0.0.1:5", "metr)";
  EXPECT_EQ(ReadReadyFile(path).status().code(), absl::StatusCode::kUnavailable);
  std::ofstream(path) << R"({"address": "127.0.0.1:5", "incarnation": 18446744073709551615})";
  const auto ready = ReadReadyFile(path);
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(ready->address, "127.0.0.1:5");
  EXPECT_EQ(ready->incarnation.get<uint64_t>(), 18446744073709551615u);
}

TEST(LaunchPlanTest, ModelFolderMustHoldAConfig) {
  const std::string folder = testing::TempDir() + "/launch_plan_model";
  std::filesystem::remove_all(folder);
  EXPECT_THAT(FindModel(folder, "/").status().ToString(), HasSubstr("no such folder"));
  std::filesystem::create_directories(folder);
  EXPECT_THAT(FindModel(folder, "/").status().ToString(), HasSubstr("no config.json"));
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_TRUE(FindModel(folder, "/").ok());
}

}  // namespace
}  // namespace baton::cli
