#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "router/frontend.h"

namespace baton {

// Readiness is a token produced end to end within the last 10 s, or later if nothing has tried
// since. Clients' tokens prove it; when there are none a probe of two tokens is sent through the
// workers: at the start, 10 s after the last proof, and whenever none of the workers that the last
// proof could have used is left. A failed probe ends readiness, unless a client's token came end to
// end meanwhile, and is repeated after 200 ms. One that was refused or came too late says nothing
// while answers go on and all workers of a side are full: prompts wait for each prefill worker, or
// no decode worker has a block to spare. A decode worker that computes prompts itself is of both
// sides; as it has to prove both, another proof is sought when it begins to.
class Readiness : public std::enable_shared_from_this<Readiness> {
 public:
  // `frontend` outlives every call of OnView.
  explicit Readiness(RouterFrontend* frontend) : frontend_(frontend) {}

  // Told of each change, on the thread of OnView. Before the first OnView of that thread.
  void set_on_change(std::function<void(bool ready)> on_change) {
    on_change_ = std::move(on_change);
  }

  // Looks at a new snapshot; sends a probe if one is due, one at a time. From one thread (the
  // node's), which looks at each status of a worker, so several times a second.
  void OnView(const RouterView& view, Time now);

  // Never ready again, and no more probes: the process drains.
  void Close() { closed_ = true; }

  bool ready() const { return ready_ && !closed_; }

 private:
  enum class Outcome : uint8_t { kProven, kFailed, kRefused, kTooLate };
  class Probe;
  struct Side;

  static Side HealthyOf(const RouterView& view, Role role);
  void Ended(Outcome outcome);
  void TakeOutcome(const Side& prefill, const Side& decode, Time now);
  void TakeTokens(const Side& prefill, const Side& decode);
  bool IsProven(const Side& prefill, const Side& decode) const;
  void Ask();

  RouterFrontend* const frontend_;
  std::function<void(bool ready)> on_change_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> closed_ = false;
  // Used on the thread of OnView only.
  Time next_probe_{};
  Time asked_at_{};
  // Workers that compute prompts, and those that decode.
  struct Pairs {
    std::set<Incarnation> prefill;
    std::set<Incarnation> decode;
  };
  Pairs asked_;   // Healthy when the probe was sent.
  Pairs proven_;  // Empty after a failed probe.
  Time proven_at_{};
  bool probing_ = false;

  absl::Mutex mutex_;
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);  // Of the probe that has ended.
};

}  // namespace baton
