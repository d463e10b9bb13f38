#include "common/tls/tls_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"

namespace baton {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr int kMaxLooks = 3;  // Of one Poll.

}  // namespace

absl::StatusOr<std::unique_ptr<TlsWatch>> TlsWatch::Create(TlsWatchOptions options) {
  ASSIGN_OR_RETURN(TlsIdentity first, LoadTlsDir(options.dir, options.unix_seconds()));
  if (first.id.role != options.role) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-dir ", options.dir, ": the certificate is of role ", RoleWord(first.id.role),
        ", and ", RoleWord(options.role), " is needed; name the folder of that role"));
  }
  return std::unique_ptr<TlsWatch>(new TlsWatch(std::move(options), std::move(first)));
}

TlsWatch::TlsWatch(TlsWatchOptions options, TlsIdentity first)
    : options_(std::move(options)),
      current_(std::make_shared<const TlsIdentity>(std::move(first))) {}

TlsWatch::~TlsWatch() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void TlsWatch::Start() {
  thread_ = std::jthread([this] {
    NameThisThread("tls-watch");
    for (;;) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopped_), kInterval)) return;
      }
      Poll();
    }
  });
}

absl::Status TlsWatch::CheckSuccessor(const TlsIdentity& next) const {
  const SpiffeId& own = current()->id;
  if (next.id.SameRelease(own) && next.id.role == own.role) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--tls-dir ", options_.dir, ": is now of ",
                                                 next.id.ToUri(), " and was of ", own.ToUri(),
                                                 "; a new name needs a restart"));
}

absl::Status TlsWatch::Take(const TlsFiles& files) {
  if (files == current()->files) return absl::OkStatus();
  ASSIGN_OR_RETURN(TlsIdentity next, CheckTlsFiles(files, options_.unix_seconds()));
  RETURN_IF_ERROR(CheckSuccessor(next));
  const auto taken = std::make_shared<const TlsIdentity>(std::move(next));
  {
    absl::MutexLock lock(&mutex_);
    current_ = taken;
  }
  if (options_.on_change) options_.on_change(*taken);
  return absl::OkStatus();
}

void TlsWatch::Poll() {
  absl::Status status;
  absl::StatusOr<TlsFiles> files = ReadTlsFiles(options_.dir);
  for (int look = 0; look < kMaxLooks; ++look) {
    status = files.ok() ? Take(*files) : files.status();
    if (status.ok()) break;
    // Perhaps the folder was switched while it was read: what it holds now counts.
    absl::StatusOr<TlsFiles> again = ReadTlsFiles(options_.dir);
    if (again == files) break;
    files = std::move(again);
  }
  is_behind_ = !status.ok();
  if (status.ok()) return last_refusal_.clear();
  if (std::exchange(last_refusal_, std::string(status.message())) == status.message()) return;
  if (options_.on_refused) options_.on_refused(status);
}

std::shared_ptr<const TlsIdentity> TlsWatch::current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

}  // namespace baton
