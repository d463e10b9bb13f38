#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/time.h"

// Errors of a client's request as absl::Status with payloads, so that HTTP and gRPC report the
// same thing: which field is wrong (`param`) and a stable machine-readable `code`.
namespace baton {

// INVALID_ARGUMENT about one field of the request. `param` is the field as the client wrote it,
// e.g. "messages[2].content"; `message` names the value and the cure.
absl::Status InvalidField(std::string_view param, std::string_view message);

// Adds or replaces the field that an error of another kind is about.
absl::Status WithErrorParam(absl::Status status, std::string_view param);

// Adds or replaces the machine-readable code, e.g. "context_length_exceeded".
absl::Status WithErrorCode(absl::Status status, std::string_view code);

// INVALID_ARGUMENT of a request of `bytes` bytes where at most `limit` are ever taken: HTTP 413.
absl::Status RequestTooLarge(int64_t bytes, int64_t limit);

// RESOURCE_EXHAUSTED that is the client's own doing (its quota), not our load: HTTP 429, not 503.
// Trying again helps after that time.
absl::Status QuotaExceeded(std::string_view message, Duration after = std::chrono::seconds(1));

// RESOURCE_EXHAUSTED of our load: HTTP 503. Trying again helps after that time.
absl::Status TryLater(std::string_view message, Duration after);

// The payloads; empty or false when absent.
std::string ErrorParam(const absl::Status& status);
std::string ErrorCode(const absl::Status& status);
bool IsQuotaExceeded(const absl::Status& status);
// Seconds after which trying again may help; at least 1.
int64_t RetryAfter(const absl::Status& status);
bool IsRequestTooLarge(const absl::Status& status);

}  // namespace baton
