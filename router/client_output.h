#pragma once

#include <span>

#include "absl/status/status.h"
#include "common/node/message.h"
#include "common/node/node.h"
#include "router/charges.h"
#include "router/node_options.h"
#include "router/sequence.h"

namespace baton {

// What workers tell of a sequence, for its client: each position once, in order, whoever tells it
// first, as the bits are equal. What stands before something bad is emitted; the error names that,
// and the call which told it is lost. One thread (the node's).
class ClientOutput {
 public:
  // All outlive this.
  ClientOutput(RouterOutbox& outbox, Charges& charges, RouterCounters& counters)
      : outbox_(outbox), charges_(charges), counters_(counters) {}

  // Of its answer. The last one finishes the sequence. What is emitted is moved away, but for the
  // numbers.
  absl::Status Tokens(SequenceState& sequence, std::span<TokenOutput> outputs);
  // Log probabilities of its prompt, which it owes. Each Prefill call begins at the first position.
  absl::Status Scores(SequenceState& sequence, std::span<PromptLogprob> scores);

 private:
  RouterOutbox& outbox_;
  Charges& charges_;
  RouterCounters& counters_;
};

}  // namespace baton
