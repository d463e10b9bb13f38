// The part of NcclCarrier that says and launches what batches want.

#include <utility>

#include "common/transport/nccl/nccl_carrier.h"

namespace baton::nccl {

using Kind = Action::Kind;

namespace {

// What is announced must fit into a slot and a launch, of either side.
bool Fits(const std::vector<FrameHeader>& frames, int64_t pieces, const BatchLimits& limits) {
  int64_t bytes = 0;
  for (const FrameHeader& frame : frames) bytes += frame.payload_bytes;
  return bytes <= limits.bytes && pieces <= limits.pieces;
}

int64_t BytesOf(const std::vector<FrameHeader>& frames) {
  int64_t bytes = 0;
  for (const FrameHeader& frame : frames) bytes += frame.payload_bytes;
  return bytes;
}

}  // namespace

absl::Status NcclCarrier::OnWord(LinkId id, std::span<const std::byte> bytes) {
  absl::StatusOr<Word> word = DecodeWord(bytes);
  if (!word.ok()) return word.status();
  Link& link = links_.at(id);
  if (word->kind == Word::Kind::kId) return OnId(id, &link, *word);
  // Of a communicator that was given up here, whose end has crossed it.
  if (link.pair < 0 || word->epoch != link.epoch) return absl::OkStatus();
  switch (word->kind) {
    case Word::Kind::kUp:
      if (std::exchange(link.is_peer_up, true)) break;
      link.limits = SmallerOf(link.limits, word->limits);
      TellIfUp(&link);
      break;
    case Word::Kind::kNever:
      link.never = true;
      [[fallthrough]];
    case Word::Kind::kDead:
      Drop(&link, "the peer gave NCCL up", /*tell=*/false);
      break;
    default:
      return OnBatchWord(&link, *std::move(word));
  }
  return absl::OkStatus();
}

absl::Status NcclCarrier::OnBatchWord(Link* link, Word word) {
  if (!link->is_up) return absl::OkStatus();
  const BatchKey key{link->pair, word.batch};
  const bool is_of_sender =
      word.kind == Word::Kind::kAnnounce || word.kind == Word::Kind::kReady;
  if (is_of_sender != link->peer.receives) {
    return absl::InvalidArgumentError("a word of the other side's");
  }
  if (is_of_sender) {
    OnBatchWordOfSender(link, key, std::move(word));
    return absl::OkStatus();
  }
  // While work of this pair is to be done, only progress counts.
  if (word.kind != Word::Kind::kAlive || !sending_.DeadlineRuns(link->pair)) link->waited = {};
  OnBatchWordOfReceiver(key, word);
  return absl::OkStatus();
}

void NcclCarrier::OnBatchWordOfSender(Link* link, BatchKey key, Word word) {
  if (word.kind == Word::Kind::kAnnounce) {
    OnAnnounce(link, key, std::move(word));
    return;
  }
  link->waited = {};
  const auto it = received_.find(key);
  if (it != received_.end() && it->second.grant == word.grant) it->second.grant = 0;
  Do(receiving_.OnReady(key, word.grant, std::move(word.sums)));
}

void NcclCarrier::OnBatchWordOfReceiver(BatchKey key, const Word& word) {
  switch (word.kind) {
    case Word::Kind::kGrant:
      Do(sending_.OnGrant(key, word.grant));
      break;
    case Word::Kind::kRevoke:
      Do(sending_.OnRevoke(key, word.grant));
      break;
    case Word::Kind::kPosted:
      Do(sending_.OnPosted(key, word.grant));
      break;
    case Word::Kind::kRefuse:
      Do(sending_.OnRefuse(key));
      break;
    case Word::Kind::kAck:
      Do(sending_.OnAck(key, word.arrived));
      break;
    default:
      break;
  }
}

void NcclCarrier::OnAnnounce(Link* link, BatchKey key, Word word) {
  FrameSet live;
  int64_t pieces = 0;
  for (size_t i = 0; i < word.frames.size(); ++i) {
    const auto admitted = link->end->Admit(word.frames[i]);
    if (!admitted.has_value()) continue;
    live.set(i);
    pieces += static_cast<int64_t>(admitted->size());
  }
  const int count = static_cast<int>(word.frames.size());
  if (!Fits(word.frames, pieces, link->limits)) {
    ++pairs_condemned_;
    Drop(link, "the peer announced more than fits", /*tell=*/true);
    return;
  }
  received_.try_emplace(key, Received{.frames = std::move(word.frames)});
  Do(receiving_.OnAnnounce(key, count, live));
}

void NcclCarrier::Do(const Actions& actions) {
  todo_.insert(todo_.end(), actions.begin(), actions.end());
  if (is_doing_) return;
  std::vector<PairId> condemned;
  is_doing_ = true;
  while (!todo_.empty()) {
    const Action action = std::move(todo_.front());
    todo_.pop_front();
    if (action.kind == Kind::kCondemn) {
      condemned.push_back(action.key.pair);
    } else {
      DoOne(action);
    }
  }
  is_doing_ = false;
  for (const PairId pair : condemned) {
    ++pairs_condemned_;
    if (Link* const link = LinkOf(pair); link != nullptr) {
      Drop(link, "the peer said what it must not say", /*tell=*/true);
    }
  }
}

void NcclCarrier::DoOne(const Action& action) {
  switch (action.kind) {
    case Kind::kGather:
      Gather(action);
      break;
    case Kind::kSend: {
      int64_t bytes = 0;
      for (const CarriedFrame& f : sent_.at(action.key).frames) bytes += f.header.payload_bytes;
      communicators_.Exchange(action.key, staging_->slot(action.slot), bytes);
      break;
    }
    case Kind::kReceive:
      communicators_.Exchange(action.key, staging_->slot(action.slot),
                              BytesOf(received_.at(action.key).frames));
      break;
    case Kind::kSum:
      StartSum(action);
      break;
    case Kind::kScatter:
      Scatter(action);
      break;
    case Kind::kSpoiled:
      if (Link* const link = LinkOf(action.key.pair); link != nullptr) {
        const std::vector<FrameHeader> frames = received_.at(action.key).frames;
        for (size_t i = 0; i < frames.size(); ++i) {
          if (action.frames[i]) link->end->OnSpoiled(frames[i]);
        }
      }
      break;
    case Kind::kEnded:
    case Kind::kLost:
      EndSent(action);
      break;
    default:
      SayOf(action);
  }
}

void NcclCarrier::SayOf(const Action& action) {
  Link* const link = LinkOf(action.key.pair);
  if (link == nullptr) return;
  Word word{.batch = action.key.batch, .grant = action.grant};
  switch (action.kind) {
    case Kind::kReady:
      word.kind = Word::Kind::kReady;
      word.sums = action.sums;
      break;
    case Kind::kGrant:
      word.kind = Word::Kind::kGrant;
      received_.at(action.key).grant = action.grant;
      received_.at(action.key).granted_for = {};
      break;
    case Kind::kRevoke:
      word.kind = Word::Kind::kRevoke;
      received_.at(action.key).grant = 0;
      break;
    case Kind::kPosted:
      word.kind = Word::Kind::kPosted;
      break;
    case Kind::kRefuse:
      word.kind = Word::Kind::kRefuse;
      received_.erase(action.key);
      break;
    default:  // kAck.
      word.kind = Word::Kind::kAck;
      word.arrived = action.frames;
      received_.erase(action.key);
  }
  Say(*link, std::move(word));
}

void NcclCarrier::Gather(const Action& action) {
  const Sent& batch = sent_.at(action.key);
  std::vector<Staging::Frame> frames;
  for (size_t i = 0; i < batch.frames.size(); ++i) {
    const CarriedFrame& frame = batch.frames[i];
    Staging::Frame& moved = frames.emplace_back();
    moved.work = {frame.header.ticket, /*receiver=*/false};
    moved.bytes = frame.header.payload_bytes;
    if (!batch.ended[i]) moved.pieces = frame.pieces;
  }
  staging_->Gather(action.key, action.slot, frames);
}

void NcclCarrier::StartSum(const Action& action) {
  std::vector<int64_t> bytes;
  for (const FrameHeader& frame : received_.at(action.key).frames) {
    bytes.push_back(frame.payload_bytes);
  }
  staging_->Sum(action.key, action.slot, bytes);
}

// The last look at tickets, blocks and ranges: much may have changed since the announcement. A
// frame that is refused here ends its ticket, whose other frames are then not written either.
void NcclCarrier::Scatter(const Action& action) {
  Link* const link = LinkOf(action.key.pair);
  const std::vector<FrameHeader> headers = received_.at(action.key).frames;
  std::vector<Staging::Frame> frames(headers.size());
  for (size_t i = 0; i < headers.size(); ++i) {
    frames[i] = {.work = {headers[i].ticket, /*receiver=*/true}, .bytes = headers[i].payload_bytes};
    if (!action.frames[i] || link == nullptr || received_.at(action.key).ended[i]) continue;
    auto admitted = link->end->Admit(headers[i]);
    if (!admitted.has_value()) continue;
    frames[i].pieces = *std::move(admitted);
    link->end->Commit(headers[i]);
  }
  const FrameSet ended = received_.at(action.key).ended;
  for (size_t i = 0; i < headers.size(); ++i) {
    if (ended[i]) frames[i].pieces.clear();
  }
  staging_->Scatter(action.key, action.slot, frames);
}

// What was not gathered, because its ticket had ended, must not pass for good bytes.
void NcclCarrier::OnLanded(Staging::Landed landed) {
  using LandedKind = Staging::Landed::Kind;
  switch (landed.kind) {
    case LandedKind::kGather:
      for (size_t i = 0; i < landed.sums.size(); ++i) {
        if (!landed.moved[i]) landed.sums[i] = ~landed.sums[i];
      }
      Do(sending_.OnGathered(landed.key, std::move(landed.sums)));
      break;
    case LandedKind::kSum:
      Do(receiving_.OnSummed(landed.key, landed.sums));
      break;
    case LandedKind::kScatter:
      Do(receiving_.OnScattered(landed.key, landed.moved));
      break;
  }
}

void NcclCarrier::EndSent(const Action& action) {
  const auto it = sent_.find(action.key);
  const auto link = links_.find(it->second.link);
  std::vector<CarriedFrame> frames;
  for (size_t i = 0; i < it->second.frames.size(); ++i) {
    if (!it->second.ended[i]) frames.push_back(std::move(it->second.frames[i]));
  }
  sent_.erase(it);
  if (link == links_.end()) return;
  if (action.kind == Kind::kEnded) {
    link->second.end->OnCarried(frames);
  } else {
    link->second.end->OnLost(frames);
  }
}

}  // namespace baton::nccl
