#pragma once

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/deadlines.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/engine/engine.h"
#include "common/engine/layer_progress.h"
#include "common/engine/sequence.h"
#include "common/kv_cache/block_allocator.h"
#include "common/node/message.h"

namespace baton {

// One call of a router, as a worker of either kind keeps it. Each kind adds what it knows besides:
// an enum `State` with kEnding, its `state`, and kStateNames.
struct CallEntry {
  CallId call = 0;
  Attempt attempt = 0;
  AgeKey age;
  Time opened{};
  Time deadline = kNever;     // Of the request.
  Time state_limit = kNever;  // Of the state that it is in, if that has one.
  std::unique_ptr<Sequence> sequence;  // Null while the engine has it.
  TicketId open_ticket;                // Of a transfer that has not ended; else empty.
  bool retired = false;                // Nothing finds it any more but its call.

  bool in_engine() const { return sequence == nullptr; }
  bool transfer_open() const { return !open_ticket.empty(); }
};

// What both kinds of worker count.
struct WorkerCounters {
  int64_t calls = 0;
  int64_t refused = 0;
  int64_t duplicates = 0;     // Calls for a (sequence, attempt) that is live.
  int64_t stale_mail = 0;     // Mail for something that has ended.
  int64_t prompt_tokens = 0;  // Of prompts that hold blocks.
  int64_t cached_tokens = 0;  // Of those, found in the prefix cache.
  int64_t handoffs = 0;       // Started (prefill), verified (decode).
  int64_t handoffs_failed = 0;
};

// The calls that a worker answers for, by call, by attempt and by what ends them in time. Knows
// nothing of their states. One thread (the node's).
template <typename Entry>
class CallTable {
 public:
  // Both outlive this.
  CallTable(const BlockAllocator& allocator, const Engine& engine)
      : allocator_(allocator), engine_(engine) {}

  // Enters a call under an attempt that is not live. Moves what the sequence needs out of the
  // request; its blocks are the caller's to add.
  template <typename Request>
  Entry& Open(CallId call, Request& request, Time now) {
    BATON_CHECK(request.prompt_length >= 0 && request.prompt_length <= std::ssize(request.tokens));
    auto context = std::make_shared<SamplingContext>();
    context->params = std::move(request.sampling);
    context->prompt.assign(request.tokens.begin(), request.tokens.begin() + request.prompt_length);
    const auto [it, is_new] = entries_.try_emplace(call);
    BATON_CHECK(is_new);
    Entry& entry = it->second;
    entry.sequence = std::make_unique<Sequence>();
    Sequence& sequence = *entry.sequence;
    sequence.id = request.sequence;
    sequence.call = call;
    sequence.tokens = std::move(request.tokens);
    sequence.prompt_length = request.prompt_length;
    sequence.sampling = std::move(context);
    sequence.tenant = std::move(request.tenant);
    sequence.is_long = engine_.IsLong(sequence.num_tokens());
    sequence.arrival = now - request.age;
    entry.call = call;
    entry.attempt = request.attempt;
    entry.age = AgeOf(sequence);
    entry.opened = now;
    entry.deadline = now + request.timeout;
    deadlines_.Set(call, entry.deadline);
    BATON_CHECK(live_.emplace(LiveKey{entry.age.id, entry.attempt}, call).second);
    return entry;
  }

  bool empty() const { return entries_.empty(); }
  Entry& at(CallId call) { return entries_.at(call); }
  const Entry& at(CallId call) const { return entries_.at(call); }
  bool IsLive(const SequenceId& sequence, Attempt attempt) const {
    return live_.contains({sequence, attempt});
  }
  // Whether another call of its sequence lives.
  bool HasSibling(const Entry& entry) const {
    auto it = live_.lower_bound({entry.age.id, 0});
    for (; it != live_.end() && it->first.first == entry.age.id; ++it) {
      if (it->second != entry.call) return true;
    }
    return false;
  }
  // Null if the call is unknown or was given up.
  Entry* FindLive(CallId call) {
    const auto it = entries_.find(call);
    return it != entries_.end() && !it->second.retired ? &it->second : nullptr;
  }
  // The live call of the last attempt before this one; an older one may still be on its way out.
  // Null if there is none, or if this attempt or a later one is live.
  Entry* FindBefore(const SequenceId& sequence, Attempt attempt) {
    auto it = live_.lower_bound({sequence, attempt});
    const bool is_past = it != live_.end() && it->first.first == sequence;
    if (is_past || it == live_.begin() || (--it)->first.first != sequence) return nullptr;
    return &entries_.at(it->second);
  }
  void SetAttempt(Entry& entry, Attempt attempt) {
    BATON_CHECK(live_.erase({entry.age.id, entry.attempt}) == 1);
    entry.attempt = attempt;
    BATON_CHECK(live_.emplace(LiveKey{entry.age.id, attempt}, entry.call).second);
  }

  void SetStateLimit(Entry& entry, Time limit) {
    BATON_CHECK(limit == kNever || entry.state != Entry::State::kEnding);
    state_limits_.Clear(entry.call, entry.state_limit);
    entry.state_limit = limit;
    if (limit != kNever) state_limits_.Set(entry.call, limit);
  }
  // A call whose request's deadline, or whose state's limit, has come; null if there is none. It is
  // found again until it is retired or has another limit.
  Entry* PastDeadline(Time now) { return Find(deadlines_.Expired(now)); }
  Entry* PastStateLimit(Time now) { return Find(state_limits_.Expired(now)); }
  Time NextDeadline() const { return std::min(deadlines_.Next(), state_limits_.Next()); }

  // Given up: nothing finds it any more but its call.
  void Retire(Entry& entry) {
    BATON_CHECK(live_.erase({entry.age.id, entry.attempt}) == 1);
    entry.retired = true;
    deadlines_.Clear(entry.call, entry.deadline);
    SetStateLimit(entry, kNever);
  }
  void Erase(const Entry& entry) {
    BATON_CHECK(!entry.in_engine() && !entry.transfer_open() && entry.state_limit == kNever);
    BATON_CHECK(entries_.erase(entry.call) == 1);
  }

  WorkerStatus Status(Incarnation incarnation, const LayerProgress& progress, bool draining) const {
    const auto waits = [](const auto& item) { return !item.second.in_engine(); };
    return {.incarnation = incarnation,
            .blocks = allocator_.counts(),
            .running = static_cast<int32_t>(engine_.num_running()),
            .waiting = static_cast<int32_t>(std::ranges::count_if(entries_, waits)),
            .preempted = static_cast<int32_t>(engine_.num_preempted()),
            .queued_tokens = engine_.queued_tokens(),
            .tokens_per_s = static_cast<int64_t>(engine_.tokens_per_s()),
            .draining = draining,
            .progress = progress.count(),
            .computing = engine_.step_in_flight() != nullptr,
            .longest_layer = progress.longest()};
  }

  // `legs`: the open ones of the worker's transport.
  WorkerAudit Audit(Incarnation incarnation, Time now, std::span<const OpenLeg> legs) const {
    WorkerAudit audit{.incarnation = incarnation, .blocks = allocator_.counts()};
    std::vector<const BlockTable*> tables = engine_.LeavingTables();
    for (const auto& [call, entry] : entries_) {
      const BlockTable* table =
          entry.in_engine() ? engine_.FindTable(call) : &entry.sequence->blocks;
      BATON_CHECK(table != nullptr);
      tables.push_back(table);
      audit.calls.push_back({.sequence = entry.age.id,
                             .attempt = entry.attempt,
                             .state = Entry::kStateNames[static_cast<int>(entry.state)],
                             .num_blocks = table->num_held(),
                             .transfer_open = entry.transfer_open(),
                             .age = now - entry.opened});
    }
    ShareOut(legs, audit);
    audit.num_unowned = allocator_.CountUnowned(tables) + engine_.CountUnownedHostBlocks();
    return audit;
  }

 private:
  using LiveKey = std::pair<SequenceId, Attempt>;

  // Gives each leg to the call that has its transfer.
  void ShareOut(std::span<const OpenLeg> legs, WorkerAudit& audit) const {
    std::map<TicketId, std::vector<int32_t>*> owners;
    size_t i = 0;
    for (const auto& [call, entry] : entries_) {
      std::vector<int32_t>& ranks = audit.calls[i++].leg_ranks;
      if (entry.transfer_open()) owners[entry.open_ticket] = &ranks;
    }
    for (const OpenLeg& leg : legs) {
      const auto owner = owners.find(leg.ticket);
      (owner == owners.end() ? audit.unowned_leg_ranks : *owner->second).push_back(leg.rank);
    }
  }

  Entry* Find(std::optional<CallId> call) { return call ? &entries_.at(*call) : nullptr; }

  const BlockAllocator& allocator_;
  const Engine& engine_;
  std::map<CallId, Entry> entries_;
  std::map<LiveKey, CallId> live_;
  Deadlines<CallId> deadlines_;
  Deadlines<CallId> state_limits_;
};

}  // namespace baton
