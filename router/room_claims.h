#pragma once

#include <cstdint>
#include <map>

#include "common/base/time.h"
#include "router/sequence.h"

namespace baton {

// A decode worker that had no room for a sequence is kept for it for a while: else smaller ones
// that came later would take what becomes free, and a long prompt would wait for ever. So is one
// without a prefill worker until it answers, as nothing else bounds how many ask it in vain. One
// thread (the node's).
class RoomClaims {
 public:
  explicit RoomClaims(Duration time) : time_(time) {}

  // The worker refused it, or is asked alone. A sequence has one claim at a time, and renews that;
  // a worker is kept for one sequence, the oldest.
  void Keep(const SequenceState& sequence, int32_t worker, Time now);
  // It has its room, or is gone.
  void Release(const SequenceState& sequence);
  // May the worker be asked for this sequence? Those that were under way before, older ones, and
  // those of a better class are not kept out.
  bool Admits(const SequenceState& sequence, int32_t worker, Time now) const;
  // When the first of them ends; kNever without one.
  Time NextEnd(Time now) const;

 private:
  struct Claim {
    uint64_t counter = 0;
    int32_t priority = 0;
    Time until{};
  };
  const Duration time_;
  std::map<int32_t, Claim> claims_;  // By worker.
};

}  // namespace baton
