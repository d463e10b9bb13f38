#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/node/message.h"
#include "router/node_options.h"
#include "router/sequence.h"

namespace baton {

// Who waits for workers: requests that none of them has seen, counted against the caps, and queued
// sequences in order. One thread (the node's).
class AdmissionQueue {
 public:
  // `options` outlive this.
  explicit AdmissionQueue(const RouterNodeOptions& options) : options_(options) {}

  // Counts a request until Leave. INVALID_ARGUMENT, with the limit: an empty queue would not hold
  // it either. RESOURCE_EXHAUSTED: there is no room now.
  absl::Status Admit(uint64_t request, const ValidRequest& body);
  // It was given to workers or has ended; nothing is done the second time.
  void Leave(uint64_t request);
  int64_t num_requests() const { return static_cast<int64_t>(counted_.size()); }
  int64_t num_tokens() const { return total_.tokens; }

  // By whether it holds a side, which must not change while it is here.
  void Add(const SequenceState& sequence);
  // Nothing is done if it is not here.
  void Remove(const SequenceState& sequence);
  bool Contains(const SequenceState& sequence) const;
  // The first of those that hold a side or of those that hold nothing, or the one behind `after`.
  std::optional<QueueKey> Next(bool holds, const std::optional<QueueKey>& after) const;

 private:
  struct Size {
    int64_t tokens = 0;  // Of prompts.
    int64_t bytes = 0;   // Of the client's body.
  };
  static absl::Status CheckSize(const ValidRequest& body, const Size& size,
                                const RouterNodeOptions& options);

  const RouterNodeOptions& options_;
  absl::flat_hash_map<uint64_t, Size> counted_;
  Size total_;
  std::set<QueueKey> queue_;
  std::set<QueueKey> holders_;
};

}  // namespace baton
