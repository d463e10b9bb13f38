#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace baton {

struct FileWatchOptions {
  const char* thread_name = "file-watch";
  // All that makes an edition of the files. All functions run on the thread that polls.
  std::function<absl::StatusOr<std::string>()> read;
  // Checks an edition and switches to it, or leaves everything as it is and says why.
  std::function<absl::Status(const std::string& bytes)> take;
  // Told once of each reason for which an edition is not taken.
  std::function<void(const absl::Status&)> on_refused;
};

// Looks at files each second and offers what has changed, once it has read the same twice: a file
// that is still being written is no edition. What is refused is tried again at each look.
class FileWatch {
 public:
  // `current`: what was read and taken at first.
  FileWatch(FileWatchOptions options, std::string current);
  ~FileWatch();

  // Polls each second on a thread of its own, once.
  void Start();

  // One look; where no thread does.
  void Poll();

  // What was there at the last looks was not taken, so older files are in use. Any thread.
  bool is_behind() const { return is_behind_; }

 private:
  absl::Status Look();

  const FileWatchOptions options_;
  std::string current_;
  std::string seen_;  // By the look before.
  std::string last_refusal_;
  std::atomic<bool> is_behind_ = false;  // There is a last refusal.
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace baton
