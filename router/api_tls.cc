#include "router/api_tls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace baton {

absl::StatusOr<std::unique_ptr<ApiTls>> ApiTls::Create(const std::string& dir,
                                                       std::function<int64_t()> unix_seconds) {
  std::unique_ptr<ApiTls> made(new ApiTls(dir, std::move(unix_seconds)));
  ASSIGN_OR_RETURN(std::string first, made->Read());
  RETURN_IF_ERROR(made->Take(first));
  ApiTls* const self = made.get();
  made->files_ = std::make_unique<FileWatch>(
      FileWatchOptions{
          .thread_name = "api-tls-watch",
          .read = [self] { return self->Read(); },
          .take = [self](const std::string& bytes) { return self->Take(bytes); },
          .on_refused = [self](const absl::Status& why) { self->OnRefused(why); }},
      std::move(first));
  return made;
}

absl::Status ApiTls::About(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--api-tls-dir ", dir_, ": ", status.message()));
}

absl::StatusOr<std::string> ApiTls::Read() const {
  absl::StatusOr<std::string> pair = ReadServerPair(dir_);
  if (pair.ok()) return pair;
  return About(pair.status());
}

absl::Status ApiTls::Take(const std::string& pair_pem) {
  const absl::StatusOr<int64_t> not_after_s = CheckServerPair(pair_pem, unix_seconds_());
  if (!not_after_s.ok()) return About(not_after_s.status());
  std::map<HttpVersion, std::shared_ptr<SSL_CTX>> contexts;
  for (const HttpVersion version : {HttpVersion::kHttp11, HttpVersion::kHttp2}) {
    absl::StatusOr<std::shared_ptr<SSL_CTX>> context = MakeHttpsContext(pair_pem, version);
    if (!context.ok()) return About(context.status());
    contexts[version] = *std::move(context);
  }
  {
    absl::MutexLock lock(&mutex_);
    contexts_ = std::move(contexts);
  }
  not_after_s_ = *not_after_s;
  Log(LogLevel::kInfo, "API certificate", {{"dir", dir_}, {"not_after", *not_after_s}});
  return absl::OkStatus();
}

void ApiTls::OnRefused(const absl::Status& why) {
  ++refused_;
  Log(LogLevel::kWarning, "new API certificate not taken", {{"why", std::string(why.message())}});
}

std::shared_ptr<SSL_CTX> ApiTls::context(HttpVersion version) const {
  absl::MutexLock lock(&mutex_);
  return contexts_.at(version);
}

}  // namespace baton
