#include "router/openai/error_response.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "router/error.h"

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

TEST(ErrorResponseTest, NamesTypeAndCodeOfEachOutcome) {
  struct Case {
    absl::Status status;
    const char* type;
    const char* code;  // Empty = null.
  };
  for (const auto& [status, type, code] :
       {Case{absl::UnauthenticatedError("x"), "authentication_error", ""},
        Case{absl::PermissionDeniedError("x"), "permission_error", ""},
        Case{absl::NotFoundError("x"), "invalid_request_error", ""},
        Case{absl::CancelledError("x"), "invalid_request_error", ""},
        Case{QuotaExceeded("x"), "rate_limit_error", "rate_limit_exceeded"},
        Case{absl::ResourceExhaustedError("x"), "server_error", "overloaded"},
        Case{absl::UnavailableError("x"), "server_error", "unavailable"},
        Case{absl::DeadlineExceededError("x"), "server_error", "deadline_exceeded"},
        Case{absl::InternalError("x"), "server_error", ""}}) {
    const Json error = ErrorObject(status);
    EXPECT_EQ(error["type"], type) << status;
    EXPECT_EQ(error["code"], *code == 0 ? Json(nullptr) : Json(code)) << status;
  }
  EXPECT_EQ(HttpStatus(absl::PermissionDeniedError("x")), 403);
  EXPECT_EQ(HttpStatus(absl::CancelledError("x")), 499);
}

TEST(ErrorResponseTest, KeepsInternalTextsInside) {
  const std::string body = ErrorResponse(absl::InternalError("10.0.0.1 /secret")).body;
  EXPECT_EQ(body.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace baton
