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
                                    .data_address = "127.0.0.1:2",
                                    .metrics_url = "http://127.0.0.1:3/metrics",
                                    .incarnation = 0xabc})
                  .ok());
  std::ifstream in(path);
  const nlohmann::json json = nlohmann::json::parse(in);
  EXPECT_EQ(json["pid"], getpid());
  EXPECT_EQ(json["role"], "decode");
  EXPECT_EQ(json["address"], "127.0.0.1:1");
  EXPECT_EQ(json["data_address"], "127.0.0.1:2");
  EXPECT_EQ(json["metrics_url"], "http://127.0.0.1:3/metrics");
  EXPECT_EQ(json["incarnation"], "0000000000000abc");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1);
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
