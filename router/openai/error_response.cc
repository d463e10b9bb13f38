#include "router/openai/error_response.h"

#include "router/error.h"

namespace baton {
namespace {

constexpr int64_t kLongWait = 60;  // Seconds.

Json NullIfEmpty(std::string text) { return text.empty() ? Json(nullptr) : Json(std::move(text)); }

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string DefaultCode(const absl::Status& status, int http_status) {
  if (http_status == 429) return "rate_limit_exceeded";
  if (absl::IsResourceExhausted(status)) return "overloaded";
  if (absl::IsUnavailable(status)) return "unavailable";
  if (absl::IsDeadlineExceeded(status)) return "deadline_exceeded";
  return "";
}

}  // namespace

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return IsRequestTooLarge(status) ? 413 : 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return IsQuotaExceeded(status) ? 429 : 503;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    case absl::StatusCode::kCancelled:
      return 499;
    default:
      return 500;
  }
}

Json ErrorObject(const absl::Status& status) {
  const int http_status = HttpStatus(status);
  std::string code = ErrorCode(status);
  if (code.empty()) code = DefaultCode(status, http_status);
  return {{"message", http_status == 500 ? std::string("The server failed on this request.")
                                         : std::string(status.message())},
          {"type", ErrorType(http_status)},
          {"param", NullIfEmpty(ErrorParam(status))},
          {"code", NullIfEmpty(std::move(code))}};
}

http::Response ErrorResponse(const absl::Status& status) {
  http::Response response{.status = HttpStatus(status),
                          .body = Dump({{"error", ErrorObject(status)}})};
  if (response.status == 429 || response.status == 503) {
    response.headers.push_back({"Retry-After", std::to_string(RetryAfter(status))});
  }
  // Clients that wait for less would only ask again in vain.
  if (RetryAfter(status) > kLongWait) response.headers.push_back({"x-should-retry", "false"});
  return response;
}

http::Response JsonResponse(const Json& body) { return {.body = Dump(body)}; }

}  // namespace baton
