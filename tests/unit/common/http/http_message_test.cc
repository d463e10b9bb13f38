#include "common/http/http_message.h"

#include <gtest/gtest.h>

namespace baton::http {
namespace {

TEST(HttpMessageTest, SplitsAndDecodesTargets) {
  std::string path;
  std::string query;
  EXPECT_TRUE(ParseTarget("/a%2Fb%C3%A9?x=%20#f", &path, &query));
  EXPECT_EQ(path, "/a/b\xC3\xA9");
  EXPECT_EQ(query, "x=%20");
  EXPECT_TRUE(ParseTarget("/", &path, &query));
  EXPECT_EQ(path, "/");
}

TEST(HttpMessageTest, RefusesTargetsThatAreNoPaths) {
  std::string path;
  std::string query;
  for (const char* target : {"", "*", "x", "http://h/", "/%", "/%4", "/%zz", "/%00", "?x"}) {
    EXPECT_FALSE(ParseTarget(target, &path, &query)) << target;
  }
}

TEST(HttpMessageTest, FindsHeadersInAnyCase) {
  const Request request{.headers = {{"Content-TYPE", "a"}, {"content-type", "b"}}};
  EXPECT_EQ(request.Find("content-type"), "a");
  EXPECT_EQ(request.Find("content"), "");
}

TEST(HttpMessageTest, WritesErrorsAsJson) {
  const Response response = ErrorResponse(404, "invalid_request_error", "Nothing.");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.body, R"({"error":{"message":"Nothing.","type":"invalid_request_error",)"
                           R"("param":null,"code":null}})");
  EXPECT_EQ(ReasonPhrase(404), "Not Found");
}

TEST(HttpMessageTest, LooksForBareLineFeedsOnceAByte) {
  EXPECT_FALSE(HasBareLineFeed("", 0));
  EXPECT_FALSE(HasBareLineFeed("a\r\n\r\nb\r", 0));
  EXPECT_TRUE(HasBareLineFeed("\n", 0));
  EXPECT_TRUE(HasBareLineFeed("a\r\nb\n", 0));
  EXPECT_FALSE(HasBareLineFeed("a\nb\r\n", 2)) << "looked at a byte again";
  EXPECT_FALSE(HasBareLineFeed("a\r\n", 2)) << "its CR came before";
  EXPECT_TRUE(HasBareLineFeed("a\r\nb\n", 4));
}

}  // namespace
}  // namespace baton::http
