#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"
#include "common/node/node.h"
#include "router/sequence.h"
#include "router/worker_directory.h"

namespace baton {

// The calls that are open on workers, and whose each of them is. One thread (the node's).
class OpenCalls {
 public:
  // Both outlive this.
  OpenCalls(WorkerDirectory& directory, RouterOutbox& outbox)
      : directory_(directory), outbox_(outbox) {}

  // A call for one side of the sequence, which has none; the caller opens it.
  CallId New(const SequenceState& sequence, SequenceState::Side& side);
  // The counter of its sequence; nothing if it is not open any more.
  std::optional<uint64_t> OwnerOf(CallId call) const;
  // Its worker has ended it: the side has none now.
  void End(SequenceState::Side& side);
  // Cancels what is open of the side and gives back what it counts at its worker. Nothing is done
  // the second time.
  void Drop(SequenceState::Side& side);

  bool empty() const { return owners_.empty(); }

 private:
  WorkerDirectory& directory_;
  RouterOutbox& outbox_;
  absl::flat_hash_map<CallId, uint64_t> owners_;  // By counter.
  CallId next_ = 1;
};

}  // namespace baton
