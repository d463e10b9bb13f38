#include "common/transport/nccl/communicators.h"

#include <utility>

#include "common/base/check.h"

namespace baton::nccl {

using EventKind = Communicators::Event::Kind;

Communicators::Communicators(std::shared_ptr<const Library> library, Device& device,
                             const Options& options, OnLost on_lost)
    : library_(library),
      device_(device),
      options_(options),
      on_lost_(std::move(on_lost)),
      calls_(std::move(library), &device, options.post) {}

void Communicators::CheckDevice(const absl::Status& status) const {
  if (status.ok()) return;
  on_lost_(status);
  BATON_CHECK(false);  // It does not return.
}

void Communicators::Make(PairId pair) {
  pairs_[pair] = {.receives = true};
  calls_.Make(pair);
}

void Communicators::Join(PairId pair, const UniqueId& id) {
  pairs_[pair] = {};
  calls_.Join(pair, id);
}

void Communicators::Exchange(BatchKey key, std::byte* data, int64_t bytes) {
  Pair& pair = pairs_.at(key.pair);
  BATON_CHECK(pair.state == State::kUp);
  pair.pending.push_back({key, data, bytes});
  ++num_pending_;
}

void Communicators::Kill(PairId id) {
  const auto it = pairs_.find(id);
  if (it == pairs_.end() || it->second.state == State::kKilled) return;
  it->second.state = State::kKilled;
  it->second.waited = {};
  // While it is being made, the abort follows that call.
  if (it->second.comm == nullptr) return;
  it->second.in_call = true;
  calls_.Abort(id, std::exchange(it->second.comm, nullptr));
}

// A mark behind it. Of an operation that NCCL never got, or lost, the mark says that nothing of it
// is on the lane.
void Communicators::Issue(const Operation& operation, std::vector<Event>* out) {
  const auto mark = device_.MarkNow(Lane::kExchange);
  CheckDevice(mark.status());
  issued_.push_back({operation, *mark});
  out->push_back({.kind = EventKind::kIssued, .pair = operation.key.pair, .key = operation.key});
}

void Communicators::OnResult(const BlockingCalls::Result& result, std::vector<Event>* out) {
  const auto it = pairs_.find(result.pair);
  if (it == pairs_.end()) return;  // Its abort was given up.
  Pair& pair = it->second;
  pair.in_call = false;
  if (result.kind == BlockingCalls::Result::Kind::kMade && result.comm != nullptr) {
    if (pair.state == State::kKilled) {
      pair.in_call = true;
      calls_.Abort(result.pair, result.comm);
      return;
    }
    pair.comm = result.comm;
    pair.state = State::kJoining;
    if (pair.receives) {
      out->push_back({.kind = EventKind::kMade, .pair = result.pair, .id = result.id});
    }
    return;
  }
  if (pair.state != State::kKilled) {
    Fail(result.pair, &pair, result.status, out);
    return;
  }
  Forget(it, out);
}

// Aborted, or killed before it was there. What NCCL had not yet brought to the lane never comes.
Communicators::Pairs::iterator Communicators::Forget(Pairs::iterator it, std::vector<Event>* out) {
  for (const Operation& operation : it->second.pending) Issue(operation, out);
  num_pending_ -= static_cast<int>(it->second.pending.size());
  out->push_back({.kind = EventKind::kAborted, .pair = it->first});
  return pairs_.erase(it);
}

void Communicators::Fail(PairId id, Pair* pair, absl::Status status, std::vector<Event>* out) {
  if (std::exchange(pair->is_failed, true)) return;
  out->push_back({.kind = EventKind::kFailed, .pair = id, .status = std::move(status)});
}

// Posted only when NCCL says that all is well.
void Communicators::Ask(PairId id, Pair* pair, std::vector<Event>* out) {
  const absl::StatusOr<bool> settled = library_->AsyncState(pair->comm);
  if (!settled.ok()) {
    Fail(id, pair, settled.status(), out);
    return;
  }
  if (!*settled) return;
  if (pair->state == State::kJoining) {
    pair->state = State::kUp;
    out->push_back({.kind = EventKind::kUp, .pair = id});
  }
  if (std::exchange(pair->is_begun, false)) {
    ++pair->num_issued;
    Issue(pair->pending.front(), out);
    pair->pending.pop_front();
    --num_pending_;
  }
  if (!pair->pending.empty()) Begin(id, pair, out);
}

void Communicators::Begin(PairId id, Pair* pair, std::vector<Event>* out) {
  const auto lane = device_.NativeLane(Lane::kExchange);
  CheckDevice(lane.status());
  const Operation& operation = pair->pending.front();
  const auto bytes = static_cast<size_t>(operation.bytes);
  const absl::Status status =
      pair->receives ? library_->Receive(pair->comm, 1, operation.data, bytes, *lane)
                     : library_->Send(pair->comm, 0, operation.data, bytes, *lane);
  if (!status.ok()) {
    Fail(id, pair, status, out);
    return;
  }
  pair->is_begun = true;
  if (std::exchange(pair->was_begun, true)) return;
  out->push_back({.kind = EventKind::kBegun, .pair = id, .key = operation.key});
}

void Communicators::CollectIssued(std::vector<Event>* out) {
  while (!issued_.empty()) {
    const auto done = device_.IsDone(issued_.front().mark);
    CheckDevice(done.status());
    if (!*done) return;
    const BatchKey key = issued_.front().operation.key;
    issued_.pop_front();
    const auto it = pairs_.find(key.pair);
    if (it != pairs_.end()) --it->second.num_issued;
    out->push_back({.kind = EventKind::kEnded, .pair = key.pair, .key = key});
  }
}

Communicators::Pairs::iterator Communicators::Wait(Pairs::iterator it, Duration running,
                                                   std::vector<Event>* out) {
  auto& [id, pair] = *it;
  ++num_unsettled_;
  // One call at a time is made: who stands in line is not late, unless the line stands still.
  if (!pair.in_call || stuck_ || calls_.IsNext(id)) pair.waited += running;
  if (pair.state != State::kKilled) {
    if (pair.waited > options_.init_limit) {
      Fail(id, &pair, absl::DeadlineExceededError("NCCL: the communicator was not there in time"),
           out);
    }
    return std::next(it);
  }
  if (pair.waited <= options_.abort_limit) return std::next(it);
  stuck_ = true;
  num_pending_ -= static_cast<int>(pair.pending.size());
  out->push_back({.kind = EventKind::kStuck, .pair = id});
  return pairs_.erase(it);
}

std::vector<Communicators::Event> Communicators::Turn(Duration running) {
  std::vector<Event> out;
  for (const BlockingCalls::Result& result : calls_.Take()) OnResult(result, &out);
  num_unsettled_ = 0;
  for (auto it = pairs_.begin(); it != pairs_.end();) {
    auto& [id, pair] = *it;
    if (pair.state == State::kKilled && !pair.in_call) {
      it = Forget(it, &out);
      continue;
    }
    const bool is_waited_for =
        pair.state == State::kJoining || !pair.pending.empty() || pair.num_issued > 0;
    if (pair.comm != nullptr && !pair.is_failed && is_waited_for) Ask(id, &pair, &out);
    it = pair.state == State::kUp ? std::next(it) : Wait(it, running, &out);
  }
  CollectIssued(&out);
  return out;
}

}  // namespace baton::nccl
