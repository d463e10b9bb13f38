#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/node/message.h"
#include "router/node_options.h"
#include "router/routing/routing_policy.h"
#include "router/sequence.h"
#include "router/worker_directory.h"

namespace baton {

// What a loss costs a sequence: a move or a retry of its bounds and of the router's budget, a rung
// of the ladder, a place among those that are prefilled again, the blame of a pair. Decides; the
// node acts. One thread (the node's).
class Recovery {
 public:
  // What is tried after so many failed handoffs of one start.
  enum class Rung : uint8_t { kSamePair, kOtherDecode, kOtherPrefill, kDecodeAlone };

  // All outlive this.
  Recovery(const RouterNodeOptions& options, WorkerDirectory& directory, RouterCounters& counters);

  // A request came in: the budget of retries grows.
  void OnRequest();

  // The worker of that side is lost to the sequence, or has failed it; counted once.
  void AddLoss(SequenceState& sequence, const SequenceState::Side& side, absl::Status why,
               Time now);
  bool IsLost(const SequenceState& sequence, const SequenceState::Side& side) const;
  // It has lost nothing: a decode worker goes on.
  void ForgetLosses(SequenceState& sequence);
  // It queues: its losses are judged after a moment, when what is known of the workers has come.
  void OnQueued(SequenceState& sequence, Time now);
  // Was each worker lost, or did it give the sequence up (ABORTED: no transfer came about in time),
  // or did it fail although it is healthy? The first two are moves, the third a retry. False: not
  // known before ready_at. An error ends the request: too many of them.
  absl::StatusOr<bool> Judge(SequenceState& sequence, Time now);
  bool HasFailed(const SequenceState& sequence, Incarnation incarnation) const;

  // May it be prefilled (again) beside the others?
  bool MayStart(const SequenceState& sequence) const;
  // It is prefilled from the start, on the first rung; until OnQueued, ForgetLosses or End.
  void Start(SequenceState& sequence);
  // It goes on where it was, with nothing prefilled.
  void Resume(SequenceState& sequence);
  void End(SequenceState& sequence);

  // The transfer between its workers failed, or is believed to have: the pair is blamed, not the
  // workers. The same pair once more, then another worker on one side, then the decode worker
  // computes the prompt itself.
  Rung Climb(SequenceState& sequence, Time now);
  // Pairs that are not chosen while there are others.
  std::vector<BlamedPair> Blamed(Time now) const;

 private:
  static bool IsAgain(const SequenceState& sequence) {
    return sequence.moves + sequence.retries > 0;
  }
  bool HasOther(const SequenceState::Side& side, const SequenceState::Side& stays) const;

  const RouterNodeOptions& options_;
  WorkerDirectory& directory_;
  RouterCounters& counters_;
  std::map<Route, Time> blamed_;  // Until when.
  double retry_credit_;           // Retries that the budget allows now.
  int32_t num_recovering_ = 0;
};

}  // namespace baton
