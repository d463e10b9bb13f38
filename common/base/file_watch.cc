#include "common/base/file_watch.h"

#include <utility>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"

namespace baton {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

}  // namespace

FileWatch::FileWatch(FileWatchOptions options, std::string current)
    : options_(std::move(options)), current_(std::move(current)), seen_(current_) {}

FileWatch::~FileWatch() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void FileWatch::Start() {
  thread_ = std::jthread([this] {
    NameThisThread(options_.thread_name);
    for (;;) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopped_), kInterval)) return;
      }
      Poll();
    }
  });
}

absl::Status FileWatch::Look() {
  ASSIGN_OR_RETURN(std::string bytes, options_.read());
  const bool is_settled = bytes == seen_;
  seen_ = std::move(bytes);
  if (!is_settled || seen_ == current_) return absl::OkStatus();
  RETURN_IF_ERROR(options_.take(seen_));
  current_ = seen_;
  return absl::OkStatus();
}

void FileWatch::Poll() {
  const absl::Status status = Look();
  // What is only half there says nothing of the edition that was refused before.
  if (status.ok() && seen_ == current_) {
    last_refusal_.clear();
    is_behind_ = false;
  }
  if (status.ok()) return;
  is_behind_ = true;
  if (std::exchange(last_refusal_, std::string(status.message())) == status.message()) return;
  options_.on_refused(status);
}

}  // namespace baton
