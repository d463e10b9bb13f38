#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// What one sequence asks of the pair that takes it.
struct RouteNeed {
  int32_t prompt_tokens = 0;
  int32_t total_tokens = 0;  // Prompt and answer.
  bool needs_decode = true;
  bool wants_scores = false;  // Of the prompt: not all decode workers that are alone give them.
  bool alone = false;  // No prefill worker: the decode worker computes the prompt itself.
  uint64_t group = 0;  // Only workers of this group, as in Candidate; 0 = any.
};

// One worker that could take a sequence now, as the router knows it.
struct Candidate {
  int32_t worker = 0;           // Index in the router's list.
  uint64_t group = 0;           // Of workers that compute the same bits.
  uint64_t pair = 0;            // Of workers of one group; only equal ones exchange KV.
  uint64_t incarnation = 0;
  int64_t pending_tokens = 0;   // Prefill: prompt tokens assigned and not computed yet, by all
                                // routers. Decode: prompt and answer tokens of live sequences.
  int64_t capacity_tokens = 1;  // Decode: tokens its whole pool holds.
  int64_t free_tokens = 0;      // Decode: of those, what nothing that lives takes or may grow into.
  int64_t tokens_per_s = 0;     // Prefill: its rate; 0 = not known.
  int32_t matched_tokens = 0;   // Leading prompt tokens that it probably has cached.
};

struct Route {
  int32_t prefill = -1;  // -1 where the decode worker is alone.
  int32_t decode = -1;  // -1 without needs_decode.
  auto operator<=>(const Route&) const = default;
};

// Everything a policy may look at. Candidates are in ascending order of worker.
struct RoutingSnapshot {
  int32_t prompt_tokens = 0;
  bool needs_decode = true;
  bool alone = false;   // As RouteNeed.
  uint64_t prefix = 0;  // Hash of tenant and first tokens, the same in all routers; 0 = too short.
  std::vector<Candidate> prefill;  // Empty if `alone`.
  std::vector<Candidate> decode;  // Empty without needs_decode.
  std::vector<Route> blamed;      // Pairs between which transfers failed lately: not to be chosen.
};

// Chooses the pair for one sequence: a pure function of the snapshot.
class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  virtual std::string_view name() const = 0;
  // Nothing when no two candidates pair.
  virtual std::optional<Route> Choose(const RoutingSnapshot& snapshot) const = 0;
};

// "least_loaded" or "prefix_affinity"; INVALID_ARGUMENT lists the names.
absl::StatusOr<std::unique_ptr<RoutingPolicy>> MakeRoutingPolicy(std::string_view name);

}  // namespace baton
