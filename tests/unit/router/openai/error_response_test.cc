#include "router/openai/error_response.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "router/generation/error.h"

namespace baton {
namespace {

bool HasRetryAfter(const http::Response& response) {
  return std::any_of(response.headers.begin(), response.headers.end(),
                     [](const http::Header& h) { return h.name == "Retry-After"; });
}

TEST(ErrorResponseTest, MapsEachOutcomeToItsStatus) {
  EXPECT_EQ(ErrorResponse(absl::InvalidArgumentError("x")).status, 400);
  EXPECT_EQ(ErrorResponse(RequestTooLarge(2, 1)).status, 413);
  EXPECT_EQ(ErrorResponse(absl::UnauthenticatedError("x")).status, 401);
  EXPECT_EQ(ErrorResponse(absl::NotFoundError("x")).status, 404);
  EXPECT_EQ(ErrorResponse(QuotaExceeded("x")).status, 429);
  EXPECT_EQ(ErrorResponse(absl::ResourceExhaustedError("x")).status, 503);
  EXPECT_EQ(ErrorResponse(absl::UnavailableError("x")).status, 503);
  EXPECT_EQ(ErrorResponse(absl::DeadlineExceededError("x")).status, 504);
  EXPECT_EQ(ErrorResponse(absl::InternalError("x")).status, 500);
  EXPECT_EQ(ErrorResponse(absl::UnknownError("x")).status, 500);
}

TEST(ErrorResponseTest, SaysWhenTryingAgainMakesSense) {
  EXPECT_TRUE(HasRetryAfter(ErrorResponse(QuotaExceeded("x"))));
  EXPECT_TRUE(HasRetryAfter(ErrorResponse(absl::UnavailableError("x"))));
  EXPECT_FALSE(HasRetryAfter(ErrorResponse(absl::InvalidArgumentError("x"))));
  EXPECT_FALSE(HasRetryAfter(ErrorResponse(RequestTooLarge(2, 1))));
}

TEST(ErrorResponseTest, HasTheFourFieldsThatClientsRead) {
  const Json body = *ParseJson(ErrorResponse(InvalidField("n", "n is 0.")).body);
  EXPECT_EQ(Dump(body), R"({"error":{"message":"n is 0.","type":"invalid_request_error",)"
                        R"("param":"n","code":null}})");
}

TEST(ErrorResponseTest, KeepsInternalTextsInside) {
  const std::string body = ErrorResponse(absl::InternalError("10.0.0.1 /secret")).body;
  EXPECT_EQ(body.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace baton
