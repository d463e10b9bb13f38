#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/base/deadlines.h"
#include "common/base/time.h"
#include "common/node/router_mail.h"
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
  // What is to be done with one that waits: it goes, or its wait is over.
  struct Due {
    SequenceState* sequence = nullptr;
    bool goes = false;
  };

  // Both outlive this.
  Returns(const RouterNodeOptions& options, const WorkerDirectory& directory)
      : options_(options), directory_(directory) {}

  // Its Decode call has ended so: may it wait, as one that was decoded there or was asking to go
  // on, and whose worker is not known to be lost?
  bool MayBegin(const SequenceState& sequence, const CallClosed& closed, Time now) const;
  // It waits from now on, and lives, in the same place, until Forget.
  void Begin(SequenceState& sequence, const CallClosed& closed, Time now);
  // It was refused, and waits on, for no longer. From now on only one at a time asks that worker
  // over this connection, until one is taken.
  void Again(SequenceState& sequence);
  // It asks the worker, by the address that has the index which is returned.
  int32_t Go(const SequenceState& sequence, Time now);
  // The worker has taken it, and may take others.
  void Taken(const SequenceState& sequence);
  // It went on, goes elsewhere, or ends.
  void Forget(SequenceState& sequence);
  // The router stood still: as if the wait had begun just now, once. One that is late all the time
  // waits no longer for that.
  void Restart(SequenceState& sequence, Time now);

  bool IsWaiting(const SequenceState& sequence) const {
    return waiting_.contains(sequence.id.counter);
  }
  // Something was heard of the worker of that index, or by the router's own clock it is lost.
  void Note(int32_t worker);
  // What is to be done now, one after the other, the oldest of each process first. Looked at are
  // only those for which something may have changed since they were looked at last.
  std::optional<Due> Next(Time now);
  // When there may be something again, unless something is heard before.
  Time NextLook() const;

 private:
  // A process, as far as is known by all addresses that it has.
  struct Process {
    Time lives_until{};   // Unless it is heard of before; kNever while a connection stands.
    int32_t worker = -1;  // The index by which it is asked; -1: it cannot be now.
  };
  // Those that wait for one process.
  struct Party {
    std::set<uint64_t> waiting;  // By counter: oldest first.
    Time look_at{};              // At any of them; the epoch: now.
    // Of the look that goes on: all up to this one were looked at, and are looked at again then.
    uint64_t looked = 0;
    Time again_at = kNever;
  };

  Process Find(Incarnation incarnation, Time now) const;
  // By the process; nothing if none waits for it.
  void LookAt(Incarnation incarnation);
  std::optional<Due> NextOf(Incarnation incarnation, Party& party, Time now);
  // It waits, with back.until as its end; or it neither waits nor asks.
  void Enter(SequenceState& sequence);
  void Leave(const SequenceState& sequence);
  // The worker has not just refused; or only one asks.
  bool MayAsk(int32_t worker, Time now) const;
  // Nothing was heard of a newer connection than it was known to have as the call ended: that may
  // be the one which was lost, or not.
  bool IsUnsure(const SequenceState& sequence) const;
  // When it is known whether the connection was lost with the call: ends are read in any order.
  Time JudgedAt(const SequenceState& sequence) const;

  const RouterNodeOptions& options_;
  const WorkerDirectory& directory_;
  std::map<uint64_t, SequenceState*> waiting_;  // By counter.
  Deadlines<uint64_t> ends_;                    // Of their waits.
  std::map<Incarnation, Party> parties_;
  std::set<std::pair<int32_t, uint64_t>> asking_;  // Worker and counter.
  std::map<int32_t, int64_t> refused_over_;        // Worker: connection.
};

}  // namespace baton
