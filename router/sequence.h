#pragma once

#include <chrono>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/node/message.h"
#include "router/routing/routing_policy.h"

namespace baton {

struct TenantAccount;

// So much longer waits a request that is worse by one class: nobody waits for ever.
inline constexpr Duration kClassTime = std::chrono::seconds(10);
// A token of an answer costs as much as so many of a prompt.
inline constexpr int64_t kAnswerWeight = 2;

// The order of one tenant's sequences: arrival, in ms, with kClassTime for each class; then id.
using QueueKey = std::tuple<int64_t, uint64_t>;

// What a sequence waits for; Waits alone looks into it.
class SequenceWait {
  friend class Waits;
  Time last_progress_{};
  Time act_by_ = kNever;      // An answer or the other side must have come by then.
  Time hold_until_ = kNever;  // While one side is held and the other sought.
  Time watch_at_ = kNever;    // When it is looked at again.
};

// One sequence as the router knows it.
struct SequenceState {
  // Tabled in ARCHITECTURE.md. A queued sequence may hold one side: a Prefill call with its KV, or
  // a Decode call with its reservation.
  enum class State : uint8_t { kQueued, kReserving, kRebinding, kPrefilling, kDecoding };

  // One side of it: its call on a worker.
  struct Side {
    CallId call = 0;  // 0 = none open.
    int32_t worker = -1;
    Incarnation incarnation = 0;
    uint64_t pair = 0;       // As Candidate's, of that process.
    int64_t connection = 0;  // To the worker, over which its call goes.
    int64_t tokens = 0;      // Counted in the worker's pending_tokens for it.
  };
  struct Loss {
    int32_t worker = 0;
    Incarnation incarnation = 0;
    int64_t connection = 0;
    absl::Status status;
    Time at{};
  };

  // Its session with the decode worker has ended; what that computed may still be there.
  struct Return {
    Time lost_at{};          // When its call ended.
    Time until{};            // The worker is waited for or asked until then; the epoch: it is not.
    int64_t connection = 0;  // The one of the call, as far as was known as it was opened,
    int64_t known = 0;       // the newest that was known as it ended,
    absl::Status why;        // and how it ended.
    int32_t times = 0;       // Since the client has seen a token.
    bool restarted = false;  // The wait was begun anew.
    bool replaced = false;   // Its connection alone was; the worker is there.
  };

  SequenceId id;
  uint64_t request = 0;
  const ValidRequest* body = nullptr;  // Of the request, which lives longer.
  const TenantAccount* account = nullptr;  // Of its tenant, likewise.
  Time arrival{};                          // Of the request.
  int32_t choice = 0;                  // Over all prompts: prompt * n + choice.
  int32_t prompt = 0;
  // Counter of the first choice of its prompt, while this one waits for that one's K/V, to go on
  // with it on the same decode worker; 0 = it is, or has become, a sequence for itself.
  uint64_t leader = 0;
  State state = State::kQueued;
  Attempt attempt = 0;
  Side prefill;
  Side decode;
  std::vector<int32_t> emitted;
  uint64_t group = 0;       // Of the workers of its last attempt.
  int32_t base = 0;         // Tokens, of prompt and emitted, that this attempt prefills.
  bool owes_score = false;  // Not all prompt log probabilities have been emitted.
  int32_t next_score = 1;   // Position of the next one that the client is to see.
  int32_t call_score = 1;   // Position of the next one that the call which scores must bring.
  bool prefilled = false;   // The Prefill call has computed its prompt.
  bool finished = false;    // Its last token was emitted, or the client stopped it.
  Time queued_since{};      // Of its present wait.
  int64_t charged = 0;      // Tokens of its prompt; 0: it was not given to workers yet.
  bool paid = false;        // A worker has said how many those really were.
  std::vector<uint64_t> prefix_hashes;
  SequenceWait wait;
  Return back;            // Written by Returns.
  bool returned = false;  // This attempt goes on with what its decode worker has of it.
  // Written by Recovery.
  int32_t handoff_failures = 0;
  std::vector<Loss> losses;       // Not judged yet.
  std::vector<Incarnation> lost;  // Moved away from these.
  int32_t moves = 0;
  int32_t retries = 0;
  bool recovering = false;  // Counted among those that are prefilled again.
  Time ready_at{};          // Queued: not given to workers before.

  bool Holds() const { return prefill.call != 0 || decode.call != 0; }
  // A decode worker is to compute its prompt, or has.
  bool IsAlone() const { return prefill.incarnation == 0 && leader == 0 && !returned; }
  // No token is wanted of it any more, or none ever was.
  bool LacksOnlyScores() const { return finished || body->score_only; }
  QueueKey key() const {
    using Ms = std::chrono::milliseconds;
    return {arrival.time_since_epoch() / Ms(1) + body->priority * int64_t{kClassTime / Ms(1)},
            id.counter};
  }
  int32_t PromptLength() const { return static_cast<int32_t>(body->prompts[prompt].size()); }
  // The position of the next token that the client is to see.
  int32_t NextPosition() const { return PromptLength() + static_cast<int32_t>(emitted.size()); }
  // Who owes it its next event.
  const Side& OwingSide() const;
  // What it asks of the pair, or of the side that it lacks.
  RouteNeed Need() const;
  // What is prefilled in this attempt: the prompt and, after a recovery, what the client has seen.
  std::vector<int32_t> BaseTokens() const;
  SamplingParams Sampling() const;
};

}  // namespace baton
