#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_watch.h"
#include "common/tls/server_pair.h"

namespace baton {

// TLS of the public API by the files of --api-tls-dir (see ReadServerPair), which may be replaced
// at any time: a new edition is checked first, then new connections go by it; a bad one is counted
// and logged once, and the old stays. Old connections go on. Thread-safe.
class ApiTls {
 public:
  // The error names --api-tls-dir, the file and the cure. `unix_seconds`: the wall clock.
  static absl::StatusOr<std::unique_ptr<ApiTls>> Create(const std::string& dir,
                                                        std::function<int64_t()> unix_seconds);

  // Looks at the files each second from now on; once.
  void Start() { files_->Start(); }
  // One look; where no thread does.
  void Poll() { files_->Poll(); }

  // For one new connection: HTTP/1.1 is the OpenAI API's, HTTP/2 gRPC's. Clients need no
  // certificate.
  std::shared_ptr<SSL_CTX> context(HttpVersion version) const;

  int64_t refused_editions() const { return refused_; }
  bool is_behind() const { return files_->is_behind(); }  // The last of them is still there.
  int64_t not_after_s() const { return not_after_s_; }  // Of the leaf in use.

 private:
  ApiTls(std::string dir, std::function<int64_t()> unix_seconds)
      : dir_(std::move(dir)), unix_seconds_(std::move(unix_seconds)) {}
  absl::StatusOr<std::string> Read() const;
  absl::Status Take(const std::string& pair_pem);
  absl::Status About(const absl::Status& status) const;
  void OnRefused(const absl::Status& why);

  const std::string dir_;
  const std::function<int64_t()> unix_seconds_;
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> not_after_s_ = 0;
  mutable absl::Mutex mutex_;
  std::map<HttpVersion, std::shared_ptr<SSL_CTX>> contexts_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FileWatch> files_;  // Last: its thread uses the rest.
};

}  // namespace baton
