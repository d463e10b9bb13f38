#include "router/api_keys_watch.h"

#include <utility>

#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace baton {

absl::StatusOr<std::unique_ptr<ApiKeysWatch>> ApiKeysWatch::Create(ApiKeysWatchOptions options) {
  ASSIGN_OR_RETURN(std::string text, ApiKeys::ReadFile(options.path));
  ASSIGN_OR_RETURN(ApiKeys first, ApiKeys::Parse(options.path, text, options.others));
  std::unique_ptr<ApiKeysWatch> made(new ApiKeysWatch(std::move(options), std::move(first)));
  ApiKeysWatch* const self = made.get();
  made->file_ = std::make_unique<FileWatch>(
      FileWatchOptions{
          .thread_name = "key-watch",
          .read = [self] { return ApiKeys::ReadFile(self->options_.path); },
          .take = [self](const std::string& bytes) { return self->Take(bytes); },
          .on_refused = [self](const absl::Status& why) { self->OnRefused(why); }},
      std::move(text));
  return made;
}

ApiKeysWatch::ApiKeysWatch(ApiKeysWatchOptions options, ApiKeys first)
    : options_(std::move(options)), current_(std::make_shared<const ApiKeys>(std::move(first))) {}

absl::Status ApiKeysWatch::Take(const std::string& text) {
  ASSIGN_OR_RETURN(ApiKeys next, ApiKeys::Parse(options_.path, text, options_.others));
  const auto taken = std::make_shared<const ApiKeys>(std::move(next));
  // First, so that a new tenant's first request has the limits of its line.
  options_.on_change(taken->limits());
  {
    absl::MutexLock lock(&mutex_);
    current_ = taken;
  }
  Log(LogLevel::kInfo, "API keys",
      {{"keys", taken->num_keys()}, {"tenants", taken->limits().size()}});
  return absl::OkStatus();
}

void ApiKeysWatch::OnRefused(const absl::Status& why) {
  ++refused_;
  Log(LogLevel::kWarning, "new API keys not taken", {{"why", std::string(why.message())}});
}

std::shared_ptr<const ApiKeys> ApiKeysWatch::current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

absl::StatusOr<std::string> ApiKeysWatch::Authenticate(std::string_view authorization) const {
  return current()->Authenticate(authorization, options_.unix_seconds());
}

}  // namespace baton
