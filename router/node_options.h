#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"
#include "common/base/time.h"

namespace baton {

struct RouterNodeOptions {
  Incarnation incarnation = 0;
  // The admission queue: requests not yet given to workers. Beyond a cap: RESOURCE_EXHAUSTED; what
  // would not fit into an empty queue: INVALID_ARGUMENT.
  int64_t max_queued_requests = 4096;
  int64_t max_queued_tokens = 16 << 20;                   // Prompt tokens.
  int64_t max_queued_bytes = 256 << 20;                   // Bytes of client bodies.
  // Who would wait for longer, or beyond its deadline, is refused at once; max(): nobody is.
  Duration max_queue_wait = std::chrono::seconds(10);
  int64_t max_pending_prefill_tokens = 16384;             // Given ahead to one prefill worker.
  size_t max_directory_entries = 1 << 16;                 // Prefix chunks remembered.
  Duration retry_delay = std::chrono::milliseconds(20);   // After a worker's refusal.
  // For so long a decode worker without room for a sequence is kept from those behind it.
  Duration room_claim = std::chrono::seconds(1);
  // Of the sequence and of the worker that owes it the next event.
  Duration no_progress_limit = std::chrono::seconds(30);
  Duration no_worker_grace = std::chrono::seconds(2);     // For a pair to come.
  // So long after its last prefill worker a decode worker computes new prompts itself.
  Duration alone_after = std::chrono::seconds(2);
  // Recovery.
  Duration recovery_grace = std::chrono::seconds(10);       // For a pair to come back.
  Duration hang_limit = std::chrono::milliseconds(2500);    // T_hang, of a worker.
  Duration answer_limit = std::chrono::milliseconds(4500);  // To a Decode call or Rebind.
  Duration hold_limit = std::chrono::seconds(2);  // Of one side's KV while the other is sought.
  Duration judge_delay = std::chrono::milliseconds(20);  // From a lost call to the question why.
  Duration verdict_limit = std::chrono::seconds(2);      // From P's "sent" to D's first token.
  Duration blame_time = std::chrono::seconds(10);        // Of a pair whose transfer failed.
  // Where a session ended under an answer the decode worker, which has its K/V, is waited for.
  Duration return_limit = std::chrono::seconds(1);
  int32_t max_returns = 3;     // Of one sequence, before the client sees its next token.
  int64_t max_return_tokens = 1'000'000;  // That go back in one turn of the router.
  int32_t max_moves = 8;       // Of one sequence, away from lost, hung or draining workers.
  int32_t max_retries = 2;     // Of one sequence, after failures of workers believed healthy.
  double retry_ratio = 0.1;    // Of such retries to requests, beyond a burst of ten.
  int32_t max_recovering = 8;  // Sequences that are prefilled again at the same time.
};

struct RouterCounters {
  int64_t requests = 0;
  int64_t ok = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t refused = 0;           // By the admission queue.
  int64_t shed = 0;              // Of those, because they would have waited for too long.
  int64_t evicted = 0;           // From the full queue, for those of other tenants.
  int64_t requeued = 0;          // Sequences that a worker refused or gave back.
  int64_t stale_tokens = 0;      // A position that was emitted already.
  int64_t stale_mail = 0;        // Mail of a call that is no longer open.
  int64_t moves = 0;             // Sequences taken away from a lost, hung or draining worker.
  int64_t retries = 0;           // Sequences tried again after a healthy worker's failure.
  int64_t handoff_failures = 0;  // Transfers that a worker reported as failed.
  int64_t rebinds = 0;           // Reservations moved to another transfer.
  int64_t resends = 0;           // Finished KV sent once more without prefill.
  int64_t joins = 0;             // Further choices sent to where the first one's K/V is.
  int64_t self_prefills = 0;     // Prompts that a decode worker computes itself.
  int64_t returns = 0;           // Sequences that went on where their session had ended.
  int64_t workers_listed = 0;     // Indices that were given to a worker.
  int64_t workers_forgotten = 0;  // And taken back.
  int64_t hung_workers = 0;      // Workers fenced because they stood still.
  int64_t unanswered = 0;        // Decode calls and Rebinds without an answer in time.
  int64_t holds_expired = 0;     // Held KV given up because no other side was found.
};

}  // namespace baton
