#include "common/transport/ranked_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/transport/wire.h"

namespace baton {
namespace {

// What only says that a side gave up; another leg may know why.
bool IsGivenUp(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsCancelled(status);
}

}  // namespace

RankedTransport::RankedTransport(int32_t kv_heads, EventSink sink)
    : kv_heads_(kv_heads), sink_(std::move(sink)) {}

RankedTransport::~RankedTransport() { BATON_CHECK(handoffs_.empty() && items_.empty()); }

KvTransport::EventSink RankedTransport::SinkOf(int32_t rank) {
  return [this, rank](TransferEvent event) { Add(ChildEvent{rank, std::move(event)}); };
}

void RankedTransport::SetRanks(std::vector<KvTransport*> ranks) {
  BATON_CHECK(CanHold(static_cast<int32_t>(ranks.size()), kv_heads_));
  ranks_ = std::move(ranks);
}

void RankedTransport::Close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  idle_.wait(lock, [this] { return !busy_; });
}

// The node tells the sender of the ticket next, so its ranks have to know it before a frame comes.
void RankedTransport::Expect(ExpectArgs args) {
  const uint64_t number = Add(std::move(args));
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return num_handled_ >= number || worker_ == std::this_thread::get_id(); });
}
void RankedTransport::Start(StartArgs args) { Add(std::move(args)); }
void RankedTransport::Push(PushArgs args) { Add(args); }
void RankedTransport::Finish(FinishArgs args) { Add(std::move(args)); }
void RankedTransport::Abort(TicketId ticket) { Add(AbortCall{ticket}); }

int64_t RankedTransport::ignored_calls() const {
  std::lock_guard lock(mutex_);
  return ignored_calls_;
}

std::vector<OpenLeg> RankedTransport::OpenLegs() const {
  std::lock_guard lock(mutex_);
  std::vector<OpenLeg> open;
  for (const auto& [key, handoff] : handoffs_) {
    for (const Leg& leg : handoff.open) open.push_back({.ticket = key.first, .rank = leg.rank});
  }
  return open;
}

void RankedTransport::Ignore() {
  std::lock_guard lock(mutex_);
  ++ignored_calls_;
}

uint64_t RankedTransport::Add(Item item) {
  std::unique_lock lock(mutex_);
  items_.push_back(std::move(item));
  const uint64_t number = ++num_added_;
  if (busy_) return number;
  busy_ = true;
  worker_ = std::this_thread::get_id();
  while (!items_.empty()) {
    Item next = std::move(items_.front());
    items_.pop_front();
    closing_ = closed_;
    lock.unlock();
    std::visit([this](auto& what) { Handle(std::move(what)); }, next);
    lock.lock();
    ++num_handled_;
    idle_.notify_all();
  }
  busy_ = false;
  worker_ = {};
  idle_.notify_all();
  return number;
}

bool RankedTransport::Open(const Key& key, std::vector<Leg> legs) {
  BATON_CHECK(!legs.empty());  // It ends with its last one.
  if (handoffs_.contains(key)) {
    Ignore();
    return false;
  }
  std::lock_guard lock(mutex_);
  handoffs_[key] = {.open = std::move(legs), .end = {.ticket = key.first, .receiver = key.second}};
  return true;
}

void RankedTransport::Refuse(const Key& key, absl::Status status) {
  if (handoffs_.contains(key)) return Ignore();  // Its end is still to be told, once.
  sink_({.ticket = key.first, .receiver = key.second, .status = std::move(status)});
}

absl::Status RankedTransport::CheckNew(TicketId ticket) const {
  if (closing_) return absl::CancelledError("KV transfer: the transport is closing");
  if (!ticket.empty() && ticket == HandoffOf(ticket)) return absl::OkStatus();
  return absl::InvalidArgumentError("the ticket " + ToString(ticket) + " is none of a handoff");
}

void RankedTransport::Handle(ExpectArgs args) {
  const Key key{args.ticket, true};
  if (absl::Status status = CheckNew(args.ticket); !status.ok()) return Refuse(key, status);
  const auto size = static_cast<int32_t>(ranks_.size());
  std::vector<Leg> legs;
  for (int32_t d = 0; d < size; ++d) legs.push_back({d, LegOf(args.ticket, d)});
  if (!Open(key, legs)) return;
  for (const Leg& leg : legs) {
    args.ticket = leg.ticket;
    ranks_[leg.rank]->Expect(args);
  }
}

// The receivers were told by another process.
absl::Status RankedTransport::CheckReceivers(const std::vector<DataRank>& receivers) const {
  const auto size = static_cast<int32_t>(receivers.size());
  bool good = CanHold(size, kv_heads_);
  for (int32_t d = 0; good && d < size; ++d) {
    good = receivers[d].heads == HeadsOf(d, size, kv_heads_);
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "Start to %d ranks that do not hold parts of %d KV heads", size, kv_heads_));
}

void RankedTransport::Handle(StartArgs args) {
  const Key key{args.ticket, false};
  if (absl::Status status = CheckNew(args.ticket); !status.ok()) return Refuse(key, status);
  const std::vector<DataRank> receivers = std::exchange(args.receivers, {});
  if (absl::Status status = CheckReceivers(receivers); !status.ok()) return Refuse(key, status);
  const auto own_size = static_cast<int32_t>(ranks_.size());
  const auto size = static_cast<int32_t>(receivers.size());
  std::vector<Leg> legs;
  for (int32_t p = 0; p < own_size; ++p) {
    for (int32_t d = 0; d < size; ++d) {
      if (Sent({p, own_size}, {d, size}, kv_heads_).count == 0) continue;
      legs.push_back({p, LegOf(key.first, d)});
    }
  }
  if (!Open(key, legs)) return;
  for (const Leg& leg : legs) {
    args.ticket = leg.ticket;
    args.receiver_place = {ReceiverOf(leg.ticket), size};
    args.endpoint = receivers[args.receiver_place.rank].endpoint;
    ranks_[leg.rank]->Start(args);
  }
}

template <typename Args, typename Call>
void RankedTransport::TellLegs(Args args, Call call) {
  auto it = handoffs_.find({args.ticket, false});
  if (it == handoffs_.end()) return Ignore();
  if (it->second.giving_up || closing_) return;
  for (const Leg& leg : it->second.open) {
    args.ticket = leg.ticket;
    (ranks_[leg.rank]->*call)(args);
  }
}

void RankedTransport::Handle(PushArgs args) { TellLegs(args, &KvTransport::Push); }

void RankedTransport::Handle(FinishArgs args) { TellLegs(std::move(args), &KvTransport::Finish); }

void RankedTransport::Handle(AbortCall call) {
  bool known = false;
  for (const bool receiver : {false, true}) {
    auto it = handoffs_.find({call.ticket, receiver});
    if (it == handoffs_.end()) continue;
    known = true;
    GiveUp(&it->second);
  }
  if (!known) Ignore();
}

void RankedTransport::GiveUp(Handoff* handoff) {
  if (handoff->giving_up || closing_) return;
  handoff->giving_up = true;
  for (const Leg& leg : handoff->open) ranks_[leg.rank]->Abort(leg.ticket);
}

void RankedTransport::Handle(ChildEvent child) {
  TransferEvent& event = child.event;
  auto it = handoffs_.find({HandoffOf(event.ticket), event.receiver});
  BATON_CHECK(it != handoffs_.end());  // It ends with its last leg.
  Handoff& handoff = it->second;
  if (event.kind == TransferEvent::Kind::kBegun) {
    if (std::exchange(handoff.begun, true)) return;
    event.ticket = it->first.first;
    return sink_(std::move(event));
  }
  EndLeg({child.rank, event.ticket}, &handoff);
  Merge(std::move(event), &handoff);
  if (!handoff.end.status.ok()) GiveUp(&handoff);
  if (!handoff.open.empty()) return;
  TransferEvent end = std::move(handoff.end);
  {
    std::lock_guard lock(mutex_);
    handoffs_.erase(it);
  }
  if (!end.status.ok()) end.first = {};
  sink_(std::move(end));
}

void RankedTransport::EndLeg(const Leg& leg, Handoff* handoff) {
  std::lock_guard lock(mutex_);
  const auto removed = std::erase(handoff->open, leg);
  BATON_CHECK(removed == 1);
}

// All legs bring the same first token; the first error stays, unless another leg knows its cause.
void RankedTransport::Merge(TransferEvent event, Handoff* handoff) {
  TransferEvent& end = handoff->end;
  end.bytes += event.bytes;
  if (event.status.ok()) {
    if (!handoff->has_first) {
      handoff->has_first = true;
      end.first = std::move(event.first);
    } else if (end.first != event.first) {
      event.status = StatusOfAbort(AbortCode::kDigestMismatch);
    }
  }
  if (end.status.ok() || (IsGivenUp(end.status) && !event.status.ok() &&
                          !IsGivenUp(event.status))) {
    end.status = std::move(event.status);
  }
}

}  // namespace baton
