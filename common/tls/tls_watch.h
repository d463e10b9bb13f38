#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/tls/tls_files.h"

namespace baton {

struct TlsWatchOptions {
  std::string dir;
  TlsRole role = TlsRole::kAdmin;      // That the certificate must name.
  std::function<int64_t()> unix_seconds;  // The wall clock.
  // Told of each edition that is taken after the first, and of each that is not, with why; on
  // the thread that polls. A bad one is told once.
  std::function<void(const TlsIdentity&)> on_change;
  std::function<void(const absl::Status&)> on_refused;
};

// The identity in a folder, looked at each second: a new edition replaces the old one when all
// of it fits, and it is of the same release and role; else the old one stays. Thread-safe.
class TlsWatch {
 public:
  // The error is that of the first look, which ends in no thread.
  static absl::StatusOr<std::unique_ptr<TlsWatch>> Create(TlsWatchOptions options);
  ~TlsWatch();

  // Polls each second on a thread of its own, once.
  void Start();

  // One look.
  void Poll();

  std::shared_ptr<const TlsIdentity> current() const;

  // What the folder held at the last look was not taken. Any thread.
  bool is_behind() const { return is_behind_; }

 private:
  TlsWatch(TlsWatchOptions options, TlsIdentity first);
  // OK: they are the current ones now.
  absl::Status Take(const TlsFiles& files);
  absl::Status CheckSuccessor(const TlsIdentity& next) const;

  const TlsWatchOptions options_;
  std::string last_refusal_;  // The polling thread's.
  std::atomic<bool> is_behind_ = false;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TlsIdentity> current_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace baton
