#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/time.h"

namespace baton {

// What a worker tells of its steps: a count that moves while it computes, and how long the count
// stands between two layers lately. A peer calls it hung when the count stands for much longer.
// What would make a peer patient with a worker that hangs is left out of `longest`:
// - time in which nobody looked at the clock although it was due: the node's own thread stood
//   still, or its whole process, and that says nothing of a layer;
// - a gap that stands alone: a layer that is slow is slow in each step;
// - the first step, which reads the weights into memory;
// - what was met before the last layers. They are counted, not timed: a worker whose layers are
//   slow is as slow after a pause, and for how long at most a peer waits is the peer's to say.
// Layers that are told together, as those of a graph, end one gap: counted each, they would fill
// the last ones with gaps of next to nothing.
class LayerProgress {
 public:
  // While it computes, the node wants to be woken so often,
  static constexpr Duration kPulse = std::chrono::milliseconds(100);
  // and when it was given the time later than that, it counts as one pulse.
  static constexpr Duration kLate = std::chrono::milliseconds(250);
  // The last so many gaps count, and at most so many before them.
  static constexpr int kWindow = 16;
  // Layers that come sooner are told together, be it in several turns of the node.
  static constexpr Duration kTogether = std::chrono::milliseconds(1);
  // A layer that takes for longer than the first of these, and than so many of the longest lately,
  // will not end. Of the first step nobody knows how long it reads weights.
  static constexpr Duration kMostLayer = std::chrono::minutes(1);
  static constexpr int kMostLongest = 20;
  static constexpr Duration kMostFirst = std::chrono::minutes(10);

  // The node was given the time. `computing`: a step is in flight from now on.
  void OnLook(Time now, bool computing) {
    if (computing_) gap_ += now - look_ > kLate ? kPulse : now - look_;
    look_ = now;
    computing_ = computing;
  }

  // A layer was written.
  void OnMark(Time now) {
    OnLook(now, computing_);
    ++count_;
    if (gap_ < kTogether) return;
    if (++num_gaps_ % kWindow == 0) before_ = std::exchange(recent_, Longest());
    recent_.Add(std::exchange(gap_, Duration::zero()));
  }

  void OnStepDone(Time now) {
    OnMark(now);
    if (!std::exchange(is_warm_, true)) recent_ = before_ = {};
  }

  uint64_t count() const { return count_; }
  // The longest that was met twice.
  Duration longest() const {
    Longest all = recent_;
    all.Add(before_.first);
    all.Add(before_.second);
    return all.second;
  }
  // No layer comes any more. A stop of the process is no such time, as of no gap.
  bool stands_still() const {
    return computing_ &&
           gap_ >= (is_warm_ ? std::max(kMostLayer, kMostLongest * longest()) : kMostFirst);
  }
  // When it wants to look next.
  Time next_look() const { return computing_ ? look_ + kPulse : kNever; }

 private:
  struct Longest {
    Duration first{};
    Duration second{};
    void Add(Duration gap) {
      second = std::max(second, std::min(first, gap));
      first = std::max(first, gap);
    }
  };

  uint64_t count_ = 0;
  uint64_t num_gaps_ = 0;
  bool computing_ = false;
  bool is_warm_ = false;
  Time look_{};
  Duration gap_{};  // Since the last mark, as far as the node was awake.
  Longest recent_;
  Longest before_;
};

}  // namespace baton
