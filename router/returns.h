#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "router/node_options.h"
#include "router/sequence.h"
#include "router/worker_directory.h"

namespace baton {

// The end of a session is not the loss of its worker: what a decode worker has computed stays in
// its prefix cache. Sequences that it was decoding wait for it, and go on there if the same process
// is back in time. That costs no move and no retry, and nothing is prefilled again. Decides; the
// node acts. One thread (the node's).
class Returns {
 public:
  // What a sequence that waits does now.
  enum class Turn : uint8_t { kWaits, kGoes, kIsOver };

  // Both outlive this.
  Returns(const RouterNodeOptions& options, const WorkerDirectory& directory)
      : options_(options), directory_(directory) {}

  // Its Decode call has ended with `why`: may it wait, as one that was decoded there or was asking
  // to go on, and whose worker is not known to be lost?
  bool MayBegin(const SequenceState& sequence, const absl::Status& why) const;
  // It waits from now on.
  void Begin(SequenceState& sequence, const absl::Status& why, Time now);
  // It was refused, and waits on, for no longer. From now on only one at a time asks that worker
  // over this connection, until one is taken.
  void Again(const SequenceState& sequence);
  // It asks the worker.
  void Go(const SequenceState& sequence);
  // The worker has taken it, and may take others.
  void Taken(const SequenceState& sequence);
  // It went on, goes elsewhere, or ends.
  void Forget(SequenceState& sequence);
  // The router stood still: as if the wait had begun just now, once. One that is late all the time
  // waits no longer for that.
  void Restart(SequenceState& sequence, Time now);

  // By counter: oldest first.
  const std::set<uint64_t>& waiting() const { return waiting_; }
  bool IsWaiting(const SequenceState& sequence) const {
    return waiting_.contains(sequence.id.counter);
  }
  Turn Look(const SequenceState& sequence, Time now) const;
  // When that may be another one, unless something is heard of the worker before.
  Time NextLook(const SequenceState& sequence, Time now) const;
  // When the session that it waits for ended.
  Time LostAt(const SequenceState& sequence) const;

 private:
  // It neither waits nor asks.
  void Leave(const SequenceState& sequence);
  // The worker has not just refused; or only one asks.
  bool MayAsk(int32_t worker, Time now) const;
  // When it is known whether the connection was lost with the call: ends are read in any order.
  Time JudgedAt(const SequenceState& sequence) const;

  const RouterNodeOptions& options_;
  const WorkerDirectory& directory_;
  std::set<uint64_t> waiting_;
  std::set<std::pair<int32_t, uint64_t>> asking_;  // Worker and counter.
  std::map<int32_t, int64_t> refused_over_;        // Worker: connection.
};

}  // namespace baton
