#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "common/engine/sequence.h"

namespace baton {

// Sequences of one finish_group leave their last token until so many of them, or all that are here,
// can finish in one step: answers that start together share each reading of the weights.
class FinishGate {
 public:
  using Calls = absl::flat_hash_set<CallId>;

  // None waits for more than this many times the tokens that it had left itself.
  static constexpr int64_t kMostWaited = 8;

  // `together` 0, 1: nobody waits.
  explicit FinishGate(int32_t together) : together_(together) {}

  // The engine took it, with this much left to compute.
  static void Enter(Sequence& sequence) { sequence.num_own = sequence.num_remaining(); }

  // Those that leave their last token out of a step of `budget` tokens, because more of their group
  // finish later. If one has waited for as long as it may, its whole group finishes.
  Calls Waiting(const SequencesByAge& running, int32_t budget, Time now) const;

  // A step of `num_tokens` was built without what is left of `waiting`.
  static void Count(const SequencesByAge& running, const Calls& waiting, int64_t num_tokens);

 private:
  static bool CanWait(const Sequence& sequence, int32_t budget, Time now);

  int32_t together_;
};

}  // namespace baton
