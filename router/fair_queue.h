#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/deadlines.h"
#include "common/base/time.h"
#include "router/sequence.h"
#include "router/tenant_counters.h"

namespace baton {

// What a sequence asks of workers; those of one kind compete for the same.
struct QueueKind {
  uint64_t group = 0;
  bool needs_decode = true;
  bool wants_scores = false;
  auto operator<=>(const QueueKind&) const = default;
};

// Sequences that hold nothing, in the order in which they get their turn. First by class: a
// tenant's is that of the best it has here, and better by one for each kClassTime since its last
// turn. Within a class first those that were under way before, then by the tenant's virtual
// counter, then by arrival. Which of a tenant's own it is, key() says. One thread (the node's).
class FairQueue {
 public:
  // With its body, account and kind as they will be until Remove.
  void Add(const SequenceState& sequence, Time now);
  // Nothing is done if it is not here.
  void Remove(uint64_t counter);
  // Removes it: this is its tenant's turn.
  void Take(uint64_t counter, Time now);
  bool Contains(uint64_t counter) const { return entries_.contains(counter); }
  size_t size() const { return entries_.size(); }
  // Its counter has become less. What has become more is noticed here.
  void Rerank(const TenantAccount& account);

  static QueueKind KindOf(const SequenceState& sequence);

  // A look at all of them, by counter, until there is no next. What is not removed is passed over
  // or closes its kind, or it would come again.
  void BeginPass(Time now);
  std::optional<uint64_t> Next();
  void PassOver(uint64_t counter);
  void Close(QueueKind kind);

 private:
  // Class, counter, and the one whose turn it is.
  using Rank = std::tuple<int64_t, VirtualCounter, uint64_t>;
  struct Kind;
  // What a tenant has of one kind.
  struct Line {
    Kind* kind = nullptr;
    const TenantAccount* account = nullptr;
    std::set<QueueKey> waiting;
    std::multiset<int32_t> priorities;  // Of those.
    Time since{};                       // Its last turn, or when it began to wait.
    Time ages_at = kNever;              // When its class becomes better.
    std::optional<QueueKey> passed;     // All up to this one, in this pass.
    std::optional<Rank> rank;           // As `ranked` has it.
  };
  struct Kind {
    QueueKind kind;
    bool closed = false;  // In this pass.
    std::set<QueueKey> resuming;
    std::optional<QueueKey> passed;  // Of those, in this pass.
    std::map<Rank, Line*> ranked;
    std::map<uint64_t, Line> lines;  // By the account's id.
  };
  struct Entry {
    Kind* kind = nullptr;
    Line* line = nullptr;  // Null: it resumes.
    QueueKey key;
    int32_t priority = 0;
  };

  // Where one stands among all: class, whether it is new, counter, and which one it is.
  using Place = std::tuple<int64_t, bool, VirtualCounter, uint64_t>;
  std::optional<Place> FirstResuming(const Kind& kind) const;
  std::optional<Place> FirstNew(Kind& kind);
  void RankLine(Line& line);
  void DropIfEmpty(Kind* kind, Line* line);

  std::map<QueueKind, Kind> kinds_;
  absl::flat_hash_map<uint64_t, Entry> entries_;  // By counter.
  Deadlines<Line*> ageing_;
  std::set<std::pair<QueueKind, uint64_t>> passed_;  // Lines with something passed over.
  Time now_{};                         // Of the last Add, Take or pass.
};

}  // namespace baton
