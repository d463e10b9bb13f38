#include "router/fair_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

// The first behind `passed`.
std::optional<QueueKey> FirstBehind(const std::set<QueueKey>& keys,
                                    const std::optional<QueueKey>& passed) {
  const auto it = passed ? keys.upper_bound(*passed) : keys.begin();
  if (it == keys.end()) return std::nullopt;
  return *it;
}

}  // namespace

QueueKind FairQueue::KindOf(const SequenceState& sequence) {
  const RouteNeed need = sequence.Need();
  return {need.group, need.needs_decode, need.wants_scores};
}

void FairQueue::Add(const SequenceState& sequence, Time now) {
  BATON_CHECK(!sequence.Holds() && sequence.account->live > 0);
  now_ = std::max(now_, now);
  const QueueKind name = KindOf(sequence);
  Kind& kind = kinds_[name];
  kind.kind = name;
  Entry entry{.kind = &kind, .key = sequence.key(), .priority = sequence.body->priority};
  if (sequence.charged > 0) {
    BATON_CHECK(kind.resuming.insert(entry.key).second);
  } else {
    const Line fresh{.kind = &kind, .account = sequence.account, .since = now_};
    Line& line = kind.lines.emplace(sequence.account->id, fresh).first->second;
    entry.line = &line;
    BATON_CHECK(line.waiting.insert(entry.key).second);
    line.priorities.insert(entry.priority);
    RankLine(line);
  }
  BATON_CHECK(entries_.emplace(sequence.id.counter, entry).second);
}

void FairQueue::Take(uint64_t counter, Time now) {
  const auto it = entries_.find(counter);
  if (it == entries_.end()) return;
  now_ = std::max(now_, now);
  if (it->second.line != nullptr) it->second.line->since = now_;
  Remove(counter);
}

void FairQueue::Remove(uint64_t counter) {
  const auto it = entries_.find(counter);
  if (it == entries_.end()) return;
  const Entry entry = it->second;
  entries_.erase(it);
  if (entry.line == nullptr) {
    BATON_CHECK(entry.kind->resuming.erase(entry.key) == 1);
  } else {
    Line& line = *entry.line;
    BATON_CHECK(line.waiting.erase(entry.key) == 1);
    line.priorities.erase(line.priorities.find(entry.priority));
    BATON_CHECK(line.priorities.size() == line.waiting.size());
    RankLine(line);
  }
  DropIfEmpty(entry.kind, entry.line);
}

void FairQueue::DropIfEmpty(Kind* kind, Line* line) {
  if (line != nullptr && line->waiting.empty()) {
    BATON_CHECK(!line->rank);  // `ranked` points to it.
    ageing_.Clear(line, line->ages_at);
    passed_.erase({kind->kind, line->account->id});
    kind->lines.erase(line->account->id);
  }
  if (kind->lines.empty() && kind->resuming.empty()) kinds_.erase(QueueKind(kind->kind));
}

// Where the line stands, by what is known at now_.
void FairQueue::RankLine(Line& line) {
  if (line.rank) BATON_CHECK(line.kind->ranked.erase(*line.rank) == 1);
  ageing_.Clear(&line, line.ages_at);
  line.rank.reset();
  line.ages_at = kNever;
  const std::optional<QueueKey> first = FirstBehind(line.waiting, line.passed);
  if (!first) return;
  const int64_t steps = (now_ - line.since) / kClassTime;
  line.ages_at = line.since + (steps + 1) * kClassTime;
  BATON_CHECK(steps >= 0 && line.ages_at > now_);
  ageing_.Set(&line, line.ages_at);
  line.rank = Rank(*line.priorities.begin() - steps, line.account->counter, std::get<1>(*first));
  BATON_CHECK(line.kind->ranked.emplace(*line.rank, &line).second);
}

void FairQueue::Rerank(const TenantAccount& account) {
  for (auto& [name, kind] : kinds_) {
    if (const auto it = kind.lines.find(account.id); it != kind.lines.end()) RankLine(it->second);
  }
}

// ---- A pass ------------------------------------------------------------------------------------

void FairQueue::BeginPass(Time now) {
  now_ = std::max(now_, now);
  for (auto& [name, kind] : kinds_) {
    kind.closed = false;
    kind.passed.reset();
  }
  for (const auto& [name, account] : passed_) {
    Line& line = kinds_.at(name).lines.at(account);
    line.passed.reset();
    RankLine(line);
  }
  passed_.clear();
  while (const std::optional<Line*> line = ageing_.Expired(now_)) RankLine(**line);
}

std::optional<uint64_t> FairQueue::Next() {
  std::optional<Place> best;
  for (auto& [name, kind] : kinds_) {
    if (kind.closed) continue;
    for (const std::optional<Place>& first : {FirstResuming(kind), FirstNew(kind)}) {
      if (first && (!best || *first < *best)) best = first;
    }
  }
  if (!best) return std::nullopt;
  BATON_CHECK(entries_.contains(std::get<3>(*best)));
  return std::get<3>(*best);
}

// Each ages for itself: it was its tenant's turn before.
std::optional<FairQueue::Place> FairQueue::FirstResuming(const Kind& kind) const {
  const std::optional<QueueKey> key = FirstBehind(kind.resuming, kind.passed);
  if (!key) return std::nullopt;
  using Ms = std::chrono::milliseconds;
  const auto& [turn_ms, counter] = *key;
  const int64_t left_ms = turn_ms - now_.time_since_epoch() / Ms(1);
  const int64_t class_ms = kClassTime / Ms(1);
  return Place(left_ms / class_ms + (left_ms % class_ms > 0 ? 1 : 0), false, 0, counter);
}

std::optional<FairQueue::Place> FairQueue::FirstNew(Kind& kind) {
  while (!kind.ranked.empty()) {
    const auto& [rank, line] = *kind.ranked.begin();
    const auto& [level, tokens, counter] = rank;
    if (tokens == line->account->counter) return Place(level, true, tokens, counter);
    BATON_CHECK(tokens < line->account->counter);  // Or it stood too far behind until now.
    RankLine(*line);                               // Its tenant was charged since.
  }
  return std::nullopt;
}

void FairQueue::PassOver(uint64_t counter) {
  const Entry& entry = entries_.at(counter);
  std::optional<QueueKey>& passed = entry.line == nullptr ? entry.kind->passed : entry.line->passed;
  BATON_CHECK(!passed || *passed < entry.key);
  passed = entry.key;
  if (entry.line == nullptr) return;
  passed_.emplace(entry.kind->kind, entry.line->account->id);
  RankLine(*entry.line);
}

void FairQueue::Close(QueueKind kind) {
  BATON_CHECK(!std::exchange(kinds_.at(kind).closed, true));
}

}  // namespace baton
