#include "deploy/cli/doctor.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Machine GoodMachine() {
  return {.cpu_model = "a CPU",
          .isa = "AVX2",
          .share = {.allowed_cores = 4,
                    .physical_bytes = 16 * kGiB,
                    .available_bytes = 8 * kGiB},
          .open_files = 1 << 16};
}

std::vector<std::string> Problems(const Machine& machine, const ModelNeed& need, int tp = 1) {
  std::vector<std::string> subjects;
  for (const Finding& finding : Examine(machine, &need, tp)) {
    if (!finding.cure.empty()) subjects.push_back(finding.subject);
  }
  return subjects;
}

TEST(DoctorTest, GoodMachineHasNoProblem) {
  EXPECT_THAT(Problems(GoodMachine(), {.weight_bytes = 1 << 20}), testing::IsEmpty());
}

TEST(DoctorTest, EachShortageIsItsOwnProblem) {
  Machine machine = GoodMachine();
  machine.share.allowed_cores = 1;
  machine.isa = "portable";
  machine.open_files = 1024;
  EXPECT_THAT(Problems(machine, {}), testing::ElementsAre("CPU", "ISA", "open files"));
}

TEST(DoctorTest, EachRankWantsACoreAndOpenFiles) {
  Machine machine = GoodMachine();
  machine.share.allowed_cores = 4;
  machine.open_files = 4 * 4096;
  EXPECT_THAT(Problems(machine, {}, /*tp=*/4), testing::IsEmpty());
  machine.share.allowed_cores = 3;
  machine.open_files = 4 * 4096 - 1;
  EXPECT_THAT(Problems(machine, {}, /*tp=*/4), testing::ElementsAre("open files", "ranks"));
  EXPECT_THAT(Problems(machine, {}), testing::IsEmpty());
}

TEST(DoctorTest, ModelThatDoesNotFitIsAProblem) {
  EXPECT_THAT(Problems(GoodMachine(), {.weight_bytes = 3 * kGiB}),
              testing::ElementsAre("model fit"));
  EXPECT_THAT(
      Problems(GoodMachine(), {.kv_bytes_per_token = kGiB / 1024, .max_positions = 8 * 1024}),
      testing::ElementsAre("model fit"));
}

TEST(DoctorTest, NcclIsToldByItsVersionOrByWhyItIsNotThereAndIsNoProblem) {
  const Finding there = ExamineNccl(BATON_STUB_NCCL);
  EXPECT_THAT(there.fact, testing::StartsWith("2.18.0 ("));
  EXPECT_EQ(there.cure, "");
  const Finding missing = ExamineNccl("/nowhere/libnccl.so.2");
  EXPECT_THAT(missing.fact, testing::HasSubstr("/nowhere/libnccl.so.2: cannot open"));
  EXPECT_EQ(missing.cure, "");
}

TEST(DoctorTest, SaysWhatAControlGroupTakesAway) {
  Machine machine = GoodMachine();
  const auto fact_of = [&](const std::string& subject) {
    for (const Finding& finding : Examine(machine, nullptr, 1)) {
      if (finding.subject == subject) return finding.fact;
    }
    return std::string();
  };
  EXPECT_EQ(fact_of("CPU"), "a CPU, 4 usable cores");
  EXPECT_EQ(fact_of("memory"), "8.0 GiB available of 16.0 GiB");
  machine.share.quota_cores = 1;
  machine.share.limit_bytes = 2 * kGiB;
  machine.share.available_bytes = 1 * kGiB;
  EXPECT_EQ(fact_of("CPU"), "a CPU, 1 usable cores (control group: 1 of 4)");
  EXPECT_EQ(fact_of("memory"),
            "1.0 GiB available of 2.0 GiB (control group; the machine has 16.0 GiB)");
  EXPECT_THAT(Problems(machine, {}), testing::ElementsAre("CPU"));
  EXPECT_THAT(Problems(machine, {.weight_bytes = kGiB}), testing::ElementsAre("CPU", "model fit"));
}

TEST(DoctorTest, UnknownMemoryIsNoProblem) {
  Machine machine = GoodMachine();
  machine.share.available_bytes = 0;
  EXPECT_THAT(Problems(machine, {.weight_bytes = 300 * kGiB}), testing::IsEmpty());
}

TEST(DoctorTest, ReadsWhatAConfigLeavesOut) {
  const std::string model = testing::TempDir() + "/doctor_model";
  std::filesystem::create_directories(model);
  std::ofstream(model + "/config.json")
      << R"({"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64,)"
      << R"( "max_position_embeddings": 9})";
  std::ofstream(model + "/a.safetensors") << std::string(7, 'x');
  std::ofstream(model + "/b.bin") << std::string(100, 'x');
  ModelNeed need = ReadModelNeed(model);
  EXPECT_EQ(need.kv_bytes_per_token, 2 * 3 * 4 * 16 * 4);
  EXPECT_EQ(need.weight_bytes, 7);
  std::ofstream(model + "/config.json") << "[]";
  need = ReadModelNeed(model);
  EXPECT_EQ(need.kv_bytes_per_token, 0);
  EXPECT_EQ(need.max_positions, 0);
}

TEST(DoctorTest, ReadsWhatTheShippedModelNeeds) {
  const ModelNeed need = ReadModelNeed(std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv");
  EXPECT_EQ(need.kv_bytes_per_token, 2 * 6 * 2 * 32 * 4);
  EXPECT_EQ(need.max_positions, 2048);
  EXPECT_GT(need.weight_bytes, 6'000'000);
}

}  // namespace
}  // namespace baton::cli
