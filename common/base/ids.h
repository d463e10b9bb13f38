#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace baton {

// The random 64-bit id of one start of one process. Never 0.
using Incarnation = uint64_t;

// One try of a sequence on one (prefill, decode) pair, counted from 1.
using Attempt = uint32_t;

// A Decode or Prefill call, an entry of a session (or a gRPC call of its own where a peer has no
// sessions), as its owner's node names it: the router counts the calls it opens, a worker's edge
// those it accepts. Unique within one process start.
using CallId = uint64_t;

// 128-bit name of a sequence (one prompt, one choice), given by the router that accepted it.
// Routers share nothing; the incarnation keeps their names apart.
struct SequenceId {
  Incarnation router = 0;
  uint64_t counter = 0;
  auto operator<=>(const SequenceId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const SequenceId& id) {
    return H::combine(std::move(h), id.router, id.counter);
  }
};

// 128 random bits that name one reservation's right to be written, for one attempt.
// All zero = no ticket.
struct TicketId {
  static constexpr uint64_t kRankBits = 7;  // Of `lo`: zero but for a transfer to one rank.
  uint64_t hi = 0;
  uint64_t lo = 0;
  auto operator<=>(const TicketId&) const = default;
  bool empty() const { return hi == 0 && lo == 0; }
  template <typename H>
  friend H AbslHashValue(H h, const TicketId& id) {
    return H::combine(std::move(h), id.hi, id.lo);
  }
};

// "<router>-<counter>" and 32 hex digits, for logs and `baton audit`.
std::string ToString(const SequenceId& id);
std::string ToString(const TicketId& id);

}  // namespace baton
