#include "router/openai/answer_format.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(AnswerFormatTest, NamesTheObjectExactly) {
  AnswerContext context{.id = "x"};
  EXPECT_EQ(AnswerHead(context, false)["object"], "text_completion");
  EXPECT_EQ(AnswerHead(context, true)["object"], "text_completion");
  context.request.chat = true;
  EXPECT_EQ(AnswerHead(context, false)["object"], "chat.completion");
  EXPECT_EQ(AnswerHead(context, true)["object"], "chat.completion.chunk");
}

TEST(AnswerFormatTest, AddsUpUsage) {
  EXPECT_EQ(Dump(UsageJson({.prompt_tokens = 3, .completion_tokens = 4, .cached_tokens = 2})),
            R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
            R"("prompt_tokens_details":{"cached_tokens":2}})");
}

TEST(AnswerFormatTest, OpensAnAnswerUpToItsChoices) {
  EXPECT_EQ(OpenAnswer({.id = "x", .created = 7, .model = "m", .system_fingerprint = "f"}, false),
            R"({"id":"x","object":"text_completion","created":7,"model":"m",)"
            R"("system_fingerprint":"f","choices":[)");
}

TEST(AnswerFormatTest, AStreamIsKeptFromCachesAndBuffers) {
  const auto header = [](const http::Response& response, std::string_view name) {
    for (const http::Header& one : response.headers) {
      if (one.name == name) return one.value;
    }
    return std::string();
  };
  const http::Response full = AnswerResponse({.id = "x"}, /*stream=*/false);
  EXPECT_EQ(full.content_type, "application/json");
  EXPECT_EQ(header(full, "X-Request-Id"), "x");
  const http::Response stream = AnswerResponse({.id = "x"}, /*stream=*/true);
  EXPECT_EQ(header(stream, "X-Request-Id"), "x");
  EXPECT_EQ(header(stream, "Cache-Control"), "no-cache");
  EXPECT_EQ(header(stream, "X-Accel-Buffering"), "no");
}

}  // namespace
}  // namespace baton
