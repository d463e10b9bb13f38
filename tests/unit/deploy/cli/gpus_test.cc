#include "deploy/cli/gpus.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Duration kLimit = std::chrono::seconds(30);

// A program that is called as a worker would be.
std::string Script(const std::string& text) {
  const std::string path = testing::TempDir() + "/gpus_test_program";
  std::ofstream(path) << "#!/bin/sh\n[ \"$*\" = --list-gpus ] || exit 9\n" << text << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(AskForGpusTest, TakesTheAnswerFromAmongOtherLines) {
  const auto answer =
      AskForGpus(Script("echo a driver says >&2; echo '{\"build\": \"cuda\"}'; echo '{}'"), kLimit);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ((*answer)["build"], "cuda");
}

TEST(AskForGpusTest, SaysWhatCameInPlaceOfAnAnswer) {
  EXPECT_THAT(AskForGpus(Script("echo libcuda is broken >&2; exit 3"), kLimit).status().message(),
              HasSubstr("libcuda is broken"));
  EXPECT_THAT(AskForGpus(Script("exit 3"), kLimit).status().message(), HasSubstr("nothing"));
  EXPECT_EQ(AskForGpus("/no/such/program", kLimit).status().code(), absl::StatusCode::kNotFound);
}

TEST(AskForGpusTest, ADriverThatHangsIsGivenUp) {
  const auto answer = AskForGpus(Script("exec sleep 1000"), std::chrono::milliseconds(50));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(answer.status().message(), HasSubstr("no answer in 0.05 s"));
}

std::vector<std::string> Lines(const std::string& json, const std::string& driver = "") {
  std::vector<std::string> lines;
  for (const Finding& finding : ExamineGpus(nlohmann::json::parse(json), driver)) {
    lines.push_back(finding.subject + ": " + finding.fact);
    if (!finding.cure.empty()) lines.back() += " -> " + finding.cure;
  }
  return lines;
}

TEST(ExamineGpusTest, ShowsEachGpuAndWhatIsTaken) {
  EXPECT_THAT(
      Lines(R"({"build": "cuda", "driver": "13.1", "problem": "", "chosen": "cuda:0",
                "reason": "the first GPU", "gpus": [
                {"index": 0, "name": "A", "architecture": "sm_90", "memory_free": 1073741824,
                 "memory_total": 2147483648, "unusable": ""},
                {"index": 1, "name": "B", "architecture": "sm_75", "memory_free": 0,
                 "memory_total": 2147483648, "unusable": "too old"}]})",
            "NVRM 590.1"),
      ElementsAre("GPU driver: NVRM 590.1, knows CUDA 13.1",
                  "GPU 0: A, sm_90, 1.0 GiB free of 2.0 GiB",
                  "GPU 1: B, sm_75, 0.0 KiB free of 2.0 GiB -> too old",
                  "device: --device auto takes cuda:0: the first GPU"));
}

TEST(ExamineGpusTest, ADriverIsAProblemOnlyToABuildForGpus) {
  const std::string rest = R"("driver": "", "problem": "none", "chosen": "cpu", "reason": "so"})";
  EXPECT_THAT(Lines(R"({"build": "cuda", )" + rest),
              ElementsAre("GPU driver: no NVIDIA driver -> none",
                          "device: --device auto takes cpu: so"));
  EXPECT_THAT(Lines(R"({"build": "cpu", )" + rest, "NVRM 580.2"),
              ElementsAre("GPU driver: NVRM 580.2", "device: --device auto takes cpu: so"));
}

TEST(ExamineGpusTest, AnEmulatedDriverIsCalledThat) {
  EXPECT_THAT(Lines(R"({"build": "emulated", "driver": "13.0", "chosen": "cpu", "reason": "r"})",
                    "NVRM of this machine"),
              ElementsAre("GPU driver: knows CUDA 13.0, emulated",
                          "device: --device auto takes cpu: r"));
}

TEST(ExamineGpusTest, NoAnswerIsAProblem) {
  const auto findings = ExamineGpus(absl::UnavailableError("hangs"), "");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].fact, "hangs");
  EXPECT_THAT(findings[0].cure, HasSubstr("nvidia-smi"));
}

}  // namespace
}  // namespace baton::cli
