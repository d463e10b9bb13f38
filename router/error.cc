#include "router/error.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr std::string_view kParamUrl = "baton/param";
constexpr std::string_view kCodeUrl = "baton/code";
constexpr std::string_view kQuotaUrl = "baton/quota";
constexpr std::string_view kSizeUrl = "baton/size";
constexpr std::string_view kRetryUrl = "baton/retry";

std::string Payload(const absl::Status& status, std::string_view url) {
  const auto payload = status.GetPayload({url.data(), url.size()});
  return payload.has_value() ? std::string(*payload) : std::string();
}

void SetPayload(absl::Status& status, std::string_view url, std::string_view value) {
  status.SetPayload({url.data(), url.size()}, absl::Cord({value.data(), value.size()}));
}

}  // namespace

absl::Status InvalidField(std::string_view param, std::string_view message) {
  absl::Status status = absl::InvalidArgumentError({message.data(), message.size()});
  SetPayload(status, kParamUrl, param);
  return status;
}

absl::Status WithErrorParam(absl::Status status, std::string_view param) {
  SetPayload(status, kParamUrl, param);
  return status;
}

absl::Status WithErrorCode(absl::Status status, std::string_view code) {
  SetPayload(status, kCodeUrl, code);
  return status;
}

absl::Status RequestTooLarge(int64_t bytes, int64_t limit) {
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("The request has ", bytes, " bytes; at most ", limit, " are allowed."));
  SetPayload(status, kSizeUrl, "1");
  return status;
}

absl::Status TryLater(std::string_view message, Duration after) {
  absl::Status status = absl::ResourceExhaustedError({message.data(), message.size()});
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(after);
  SetPayload(status, kRetryUrl, absl::StrCat(std::max<int64_t>(1, seconds.count())));
  return status;
}

absl::Status QuotaExceeded(std::string_view message, Duration after) {
  absl::Status status = TryLater(message, after);
  SetPayload(status, kQuotaUrl, "1");
  return status;
}

int64_t RetryAfter(const absl::Status& status) {
  int64_t seconds = 1;
  return absl::SimpleAtoi(Payload(status, kRetryUrl), &seconds) ? seconds : 1;
}

std::string ErrorParam(const absl::Status& status) { return Payload(status, kParamUrl); }
std::string ErrorCode(const absl::Status& status) { return Payload(status, kCodeUrl); }
bool IsQuotaExceeded(const absl::Status& status) { return !Payload(status, kQuotaUrl).empty(); }
bool IsRequestTooLarge(const absl::Status& status) { return !Payload(status, kSizeUrl).empty(); }

}  // namespace baton
