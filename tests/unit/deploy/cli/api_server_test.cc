#include "deploy/cli/api_server.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

TEST(ApiServerTest, ApiKeyIsTheFilesTextWithoutItsNewline) {
  const std::string path = testing::TempDir() + "/api_key";
  std::ofstream(path) << "abc-1\n";
  EXPECT_EQ(ReadApiKey(path).value(), "abc-1");
  EXPECT_EQ(ReadApiKey("").value(), "");
}

TEST(ApiServerTest, ApiKeyFilesOfNoOrSeveralLinesAreRefusedByTheOption) {
  const std::string path = testing::TempDir() + "/odd_api_key";
  for (const char* text : {"", " \n", "a\r\nHost: b", "a b"}) {
    std::ofstream(path) << text;
    EXPECT_NE(ReadApiKey(path).status().ToString().find("--api-key-file"), std::string::npos);
  }
  EXPECT_FALSE(ReadApiKey(testing::TempDir() + "/no_such_key").ok());
}

TEST(ApiServerTest, NoClusterIsSaidWithItsCure) {
  const auto url = RouterUrl(testing::TempDir() + "/no_cluster_here");
  EXPECT_NE(url.status().ToString().find("baton up --dir"), std::string::npos) << url.status();
}

TEST(ApiServerTest, TrustsCasOverHttpsAlone) {
  EXPECT_EQ(FindApiServer({.url = "http://h:1"})->trust, nullptr);
  EXPECT_NE(FindApiServer({.url = "https://h:1"})->trust, nullptr);
  const auto idle = FindApiServer({.url = "http://h:1", .ca = "some.crt"});
  EXPECT_THAT(idle.status().message(), testing::HasSubstr("--ca some.crt: http://h:1 has no TLS"));
  const auto none = FindApiServer({.url = "https://h:1", .ca = "/no/such/file"});
  EXPECT_THAT(none.status().message(), testing::HasSubstr("--ca /no/such/file: "));
}

}  // namespace
}  // namespace baton::cli
