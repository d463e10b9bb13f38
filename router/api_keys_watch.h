#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_watch.h"
#include "router/api_keys.h"

namespace baton {

struct ApiKeysWatchOptions {
  std::string path;
  TenantLimits others;                    // See ApiKeys::Load.
  std::function<int64_t()> unix_seconds;  // The wall clock.
  // Told of new limits, on the thread that looks, before the keys that brought them are taken.
  std::function<void(const std::map<std::string, TenantLimits>&)> on_change;
};

// The keys of a file, looked at each second: a changed file is taken as a whole, or the old keys
// stay, which is counted and logged once. Thread-safe.
class ApiKeysWatch {
 public:
  // The error is that of the first look.
  static absl::StatusOr<std::unique_ptr<ApiKeysWatch>> Create(ApiKeysWatchOptions options);

  // Looks at the file from now on; once.
  void Start() { file_->Start(); }
  // One look; where no thread does.
  void Poll() { file_->Poll(); }

  // See ApiKeys. Of a request that has begun it is not asked again.
  absl::StatusOr<std::string> Authenticate(std::string_view authorization) const;

  std::map<std::string, TenantLimits> limits() const { return current()->limits(); }

  // Changes of the file that were not taken.
  int64_t refused() const { return refused_; }
  bool is_behind() const { return file_->is_behind(); }  // The last of them is still there.

 private:
  ApiKeysWatch(ApiKeysWatchOptions options, ApiKeys first);
  std::shared_ptr<const ApiKeys> current() const;
  absl::Status Take(const std::string& text);
  void OnRefused(const absl::Status& why);

  const ApiKeysWatchOptions options_;
  std::atomic<int64_t> refused_ = 0;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ApiKeys> current_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FileWatch> file_;  // Last: its thread uses the rest.
};

}  // namespace baton
