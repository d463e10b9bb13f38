#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "router/frontend.h"

namespace baton {

// Readiness is a token produced end to end: as soon as a prefill and a decode worker are healthy a
// probe of two tokens is sent through them, and again whenever none of the workers that the last
// good probe could have used is left. A failed probe is repeated after 200 ms.
class Readiness : public std::enable_shared_from_this<Readiness> {
 public:
  // `frontend` outlives every call of OnView.
  explicit Readiness(RouterFrontend* frontend) : frontend_(frontend) {}

  // Told of each change, on the thread of OnView. Before the first OnView of that thread.
  void set_on_change(std::function<void(bool ready)> on_change) {
    on_change_ = std::move(on_change);
  }

  // Looks at a new snapshot; sends a probe if one is due. From one thread (the node's).
  void OnView(const RouterView& view, Time now);

  // Never ready again: the process drains.
  void Close() { closed_ = true; }

  bool ready() const { return ready_ && !closed_; }

 private:
  class Probe;
  void Ended(bool ok);
  void Send();

  RouterFrontend* const frontend_;
  std::function<void(bool ready)> on_change_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> closed_ = false;
  Time next_probe_{};
  absl::Mutex mutex_;
  bool probing_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Incarnation> asked_ ABSL_GUARDED_BY(mutex_);   // Healthy when the probe was sent.
  std::set<Incarnation> proven_ ABSL_GUARDED_BY(mutex_);  // Those of the last good probe.
};

}  // namespace baton
