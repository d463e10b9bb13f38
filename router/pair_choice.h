#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/time.h"
#include "router/node_options.h"
#include "router/recovery.h"
#include "router/room_claims.h"
#include "router/routing/prefix_directory.h"
#include "router/routing/routing_policy.h"
#include "router/sequence.h"
#include "router/worker_directory.h"

namespace baton {

// Which workers a sequence may go to now: a policy chooses among those that no sequence further
// ahead waits for. It only asks; the node gives the sequence to them. One thread (the node's).
class PairChoice {
 public:
  // All outlive this.
  struct Known {
    const WorkerDirectory& directory;
    const Recovery& recovery;
    const RoomClaims& claims;
    const PrefixDirectory& prefixes;
  };
  // Workers that take a sequence, and for what: the sides that it lacks, or a decode worker alone.
  struct Found {
    RouteNeed need;
    Route route;
  };

  // `options` outlive this.
  PairChoice(const RouterNodeOptions& options, Known known, std::unique_ptr<RoutingPolicy> policy);

  // Nothing is kept for anyone yet.
  void BeginTurn();
  // Nothing if no workers take it now.
  std::optional<Found> Find(const SequenceState& sequence, Time now) const;
  // None were found: what it lacks is kept for it until the next turn. False if those behind it
  // can do nothing without.
  bool Reserve(const SequenceState& sequence, Time now);
  // That decode worker is kept for a sequence further ahead.
  bool IsDecodeReserved(int32_t worker) const;
  // Where no usable pair is there: when it has waited for one long enough.
  Time GivesUpAt(const SequenceState& sequence) const;

 private:
  bool MayBeAlone(const SequenceState& sequence, Time now) const;
  RoutingSnapshot SnapshotFor(const SequenceState& sequence, const RouteNeed& need, Time now) const;
  std::optional<Route> Choose(const SequenceState& sequence, const RouteNeed& need, Time now) const;

  const RouterNodeOptions& options_;
  const Known known_;
  const std::unique_ptr<RoutingPolicy> policy_;
  struct ReservedDecode {
    uint64_t group = 0;
    bool wants_scores = false;  // Those alone that prompts are scored through.
  };
  // The sides that sequences further ahead wait for, in this turn: of these groups; 0 = all.
  std::vector<uint64_t> reserved_prefill_;
  std::vector<ReservedDecode> reserved_decode_;
};

}  // namespace baton
