#include "common/process/worker_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";

// Drains when told to, and is otherwise idle.
class IdleNode : public Node {
 public:
  void Handle(Message message, Time) override {
    draining |= std::holds_alternative<Drain>(message);
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
  auto runtime = WorkerRuntime::Create(config, Role::kDecode);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const WorkerRuntime::NodeParts parts = (*runtime)->parts();
  EXPECT_NE(parts.incarnation, 0u);
  EXPECT_EQ(parts.allocator.num_blocks(), 64);
  EXPECT_EQ(parts.model.vocab_size, 4096);
  IdleNode node;
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
  EXPECT_EQ(ready["data_address"], parts.data_endpoint);
  (*runtime)->Drain([] { return false; });
  EXPECT_TRUE(node.draining);
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
