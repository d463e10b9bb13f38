#pragma once

#include <cstdint>

#include "router/admission_queue.h"
#include "router/sequence.h"

namespace baton {

// What a tenant is charged for a sequence: its prompt as far as it is computed, once however often
// it is tried, and the tokens that the client gets. One thread (the node's).
class Charges {
 public:
  // `queue` outlives this.
  explicit Charges(AdmissionQueue& queue) : queue_(queue) {}

  // It goes to a worker, which is to compute so much of its prompt, as far as is known now. Instead
  // of what was charged before.
  void Expect(SequenceState& sequence, int64_t prompt_tokens);
  // Who computed its prompt has said how much of it was cached. Only the first time counts.
  void Settle(SequenceState& sequence, int32_t cached_tokens);
  // A worker has computed nothing of it: it has not had its turn.
  void GiveBack(SequenceState& sequence);
  // So many tokens of its answer were given to the client.
  void Answered(const SequenceState& sequence, int64_t tokens);

 private:
  AdmissionQueue& queue_;
};

}  // namespace baton
