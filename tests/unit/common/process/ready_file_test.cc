#include "common/process/ready_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(ReadyFileTest, HoldsPidAddressesAndIncarnationAndNothingElseIsLeft) {
  const std::string folder = ::testing::TempDir() + "/baton-ready-file-test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/ready.json";
  ASSERT_TRUE(WriteReadyFile(path, {.role = "decode",
                                    .address = "127.0.0.1:1",
                                    .data_addresses = {"127.0.0.1:2", "127.0.0.1:3"},
                                    .metrics_url = "http://127.0.0.1:3/metrics",
                                    .admin_address = "127.0.0.1:4",
                                    .incarnation = 0xabc})
                  .ok());
  std::ifstream in(path);
  const nlohmann::json json = nlohmann::json::parse(in);
  EXPECT_EQ(json["pid"], getpid());
  EXPECT_EQ(json["role"], "decode");
  EXPECT_EQ(json["address"], "127.0.0.1:1");
  EXPECT_EQ(json["data_address"], "127.0.0.1:2");
  EXPECT_EQ(json["data_addresses"], nlohmann::json({"127.0.0.1:2", "127.0.0.1:3"}));
  EXPECT_EQ(json["metrics_url"], "http://127.0.0.1:3/metrics");
  EXPECT_EQ(json["admin_address"], "127.0.0.1:4");
  EXPECT_EQ(json["incarnation"], "0000000000000abc");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1);
  std::filesystem::remove_all(folder);
}

// Whoever reads it while it is written again sees the old one or the new one, whole.
TEST(ReadyFileTest, ANewFileTakesThePlaceOfTheOld) {
  const std::string path = ::testing::TempDir() + "/baton-ready-file-test.json";
  ASSERT_TRUE(WriteReadyFile(path, {.role = "decode", .address = "127.0.0.1:1"}).ok());
  std::ifstream reader(path);
  ASSERT_TRUE(WriteReadyFile(path, {.role = "decode", .address = "127.0.0.1:2"}).ok());
  EXPECT_EQ(nlohmann::json::parse(reader)["address"], "127.0.0.1:1");
  std::ifstream again(path);
  EXPECT_EQ(nlohmann::json::parse(again)["address"], "127.0.0.1:2");
  std::filesystem::remove(path);
}

TEST(ReadyFileTest, AFailureLeavesNothingBehind) {
  const std::string folder = ::testing::TempDir() + "/baton-ready-file-test-folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/taken/inside");
  EXPECT_FALSE(WriteReadyFile(folder + "/taken", {}).ok());
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    entries += entry.exists() ? 1 : 0;
  }
  EXPECT_EQ(entries, 1);
  std::filesystem::remove_all(folder);
}

TEST(ReadyFileTest, AnUnwritablePathNamesTheOption) {
  const absl::Status status = WriteReadyFile("/nonexistent/folder/ready.json", {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--ready-file /nonexistent"));
}

TEST(ReadyFileTest, AnEmptyPathWritesNothing) { EXPECT_TRUE(WriteReadyFile("", {}).ok()); }

}  // namespace
}  // namespace baton
