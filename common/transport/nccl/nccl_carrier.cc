#include "common/transport/nccl/nccl_carrier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton::nccl {
namespace {

constexpr int kMaxPairs = 16;  // Communicators of a rank; links beyond them use their connection.
constexpr size_t kFailuresAMinute = 2;  // Then no other communicator until that minute is over.
constexpr Duration kMinute = std::chrono::minutes(1);
constexpr Duration kLongestSlice = std::chrono::milliseconds(100);
constexpr Duration kInitPoll = std::chrono::milliseconds(2);
constexpr double kSecondsPerByte = 1.0 / 64e6;  // Assumed, for deadlines.

// The peer has another version than this end.
std::string WhyNot(int library_version, uint64_t peer) {
  if (peer == 0) return "the peer has no NCCL";
  if (WordsVersionOf(peer) != kWordsVersion) {
    return absl::StrCat("the peer is of a build with other words for NCCL: ", WordsVersionOf(peer),
                        ", here ", kWordsVersion);
  }
  return absl::StrCat("NCCL is ", VersionText(library_version), " here and ",
                      VersionText(LibraryVersionOf(peer)), " there");
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCarrier>> NcclCarrier::Create(
    std::shared_ptr<const Library> library, Device& device, const KvCache& cache,
    Options options) {
  BATON_CHECK(options.staging.slots > 0 && options.staging.slot_bytes % 16 == 0);
  RETURN_IF_ERROR(device.NativeLane(Lane::kExchange).status());
  ASSIGN_OR_RETURN(auto staging, Staging::Create(device, cache, options.staging, options.on_lost,
                                                 options.now));
  std::unique_ptr<NcclCarrier> carrier(
      new NcclCarrier(std::move(library), device, std::move(options)));
  carrier->staging_ = std::move(staging);
  BATON_CHECK(IsLimits(carrier->own_limits()));  // Else no peer would take them for any.
  return carrier;
}

NcclCarrier::NcclCarrier(std::shared_ptr<const Library> library, Device& device, Options options)
    : library_(library),
      options_(std::move(options)),
      communicators_(std::move(library), device,
                     {.init_limit = Scaled(options_.limits.init_limit),
                      .abort_limit = Scaled(options_.limits.abort_limit),
                      .post = options_.limits.post},
                     options_.on_lost),
      sending_(options_.staging.slots),
      receiving_(options_.staging.slots) {}

Duration NcclCarrier::Scaled(Duration d) const {
  return std::chrono::duration_cast<Duration>(d * options_.time_scale);
}

BatchLimits NcclCarrier::own_limits() const {
  return {.bytes = options_.staging.slot_bytes,
          .pieces = static_cast<int64_t>(options_.staging.max_pieces)};
}

PayloadCarrier::Limits NcclCarrier::LimitsFor(LinkId id) const {
  const BatchLimits& limits = links_.at(id).limits;
  return {.bytes = limits.bytes,
          .frames = size_t{kMaxBatchFrames},
          .pieces = static_cast<size_t>(limits.pieces)};
}

NcclCarrier::Link* NcclCarrier::LinkOf(PairId pair) {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end() || it->second.link < 0) return nullptr;
  const auto link = links_.find(it->second.link);
  return link == links_.end() ? nullptr : &link->second;
}

void NcclCarrier::Say(const Link& link, Word word) {
  word.epoch = link.epoch;
  link.end->Say(EncodeWord(word));
}

PayloadCarrier::LinkId NcclCarrier::Open(End* end, const Peer& peer) {
  Link& link = links_[next_link_];
  link.end = end;
  link.peer = peer;
  link.why = "the communicator is not there yet";
  has_news_ = true;
  link.never = peer.version != version();
  if (link.never) {
    TellPath(&link, /*up=*/false, WhyNot(library_->version(), peer.version));
  } else if (peer.receives) {
    link.next_offer = now_;
  }
  return next_link_++;
}

void NcclCarrier::Close(LinkId id) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  Detach(&it->second);
  links_.erase(it);
  has_news_ = true;
}

bool NcclCarrier::CanCarry(const Link& link) const {
  return link.pair >= 0 && link.is_up && link.is_peer_up && !communicators_.stuck();
}

// A full pair waits for its own batches alone, whose time is limited.
PayloadCarrier::Room NcclCarrier::RoomFor(LinkId id) const {
  const auto it = links_.find(id);
  if (it == links_.end() || !CanCarry(it->second)) return Room::kNone;
  const PairId pair = it->second.pair;
  if (sending_.CanAnnounce(pair)) return Room::kFree;
  return sending_.open(pair) > 0 ? Room::kFull : Room::kNone;
}

void NcclCarrier::Carry(LinkId id, std::vector<CarriedFrame> frames) {
  Link& link = links_.at(id);
  const Actions announce = sending_.Announce(link.pair, static_cast<int>(frames.size()));
  Word word{.kind = Word::Kind::kAnnounce, .batch = announce.front().key.batch};
  for (const CarriedFrame& frame : frames) word.frames.push_back(frame.header);
  sent_[announce.front().key] = {.link = id, .frames = std::move(frames)};
  link.waited = {};
  Say(link, std::move(word));
}

PairId NcclCarrier::BeginPair(LinkId id, Link* link) {
  link->pair = next_pair_++;
  link->limits = own_limits();
  pairs_[link->pair] = {.link = id, .receives = link->peer.receives};
  return link->pair;
}

void NcclCarrier::Offer(LinkId id, Link* link) {
  if (communicators_.stuck()) {
    link->never = true;
    return;
  }
  if (communicators_.size() >= kMaxPairs) {
    link->why = absl::StrCat("a rank has ", kMaxPairs, " communicators at most");
    has_news_ = true;
    link->next_offer = now_ + std::chrono::seconds(1);
    return;
  }
  ++link->epoch;
  communicators_.Make(BeginPair(id, link));
}

absl::Status NcclCarrier::OnId(LinkId id, Link* link, const Word& word) {
  if (link->peer.receives || word.epoch <= link->epoch) {
    return absl::InvalidArgumentError("an NCCL id that nobody waits for");
  }
  Drop(link, "the peer begins anew", /*tell=*/false);
  link->epoch = word.epoch;
  if (communicators_.stuck() || link->never) {
    link->never = true;
    Say(*link, {.kind = Word::Kind::kNever});
  } else if (communicators_.size() >= kMaxPairs) {
    Say(*link, {.kind = Word::Kind::kDead});
  } else {
    communicators_.Join(BeginPair(id, link), word.id);
  }
  return absl::OkStatus();
}

void NcclCarrier::OnUp(PairId pair, Link* link) {
  pairs_.at(pair).was_up = true;
  link->is_up = true;
  link->waited = {};
  if (link->peer.receives) {
    receiving_.AddPair(pair);
  } else {
    sending_.AddPair(pair);
  }
  Say(*link, {.kind = Word::Kind::kUp, .limits = own_limits()});
  TellIfUp(link);
}

void NcclCarrier::TellIfUp(Link* link) {
  if (!CanCarry(*link)) return;
  ++pairs_up_;
  const int64_t most = link->limits.bytes;
  TellPath(link, /*up=*/true,
           most >= int64_t{kMaxDataPayloadBytes}
               ? std::string()
               : absl::StrCat("frames of more than ", most,
                              " bytes go over TCP: the smaller staging slot holds no more"));
}

void NcclCarrier::TellPath(Link* link, bool up, const std::string& why) {
  link->why = why;
  has_news_ = true;
  options_.on_path(link->peer.name, up, why);
}

void NcclCarrier::PublishLinks() {
  if (!std::exchange(has_news_, false)) return;
  std::vector<LinkState> states;
  for (const auto& [id, link] : links_) {
    states.push_back({.peer = link.peer.name,
                      .version = LibraryVersionOf(link.peer.version),
                      .sends = !link.peer.receives,
                      .is_up = CanCarry(link),
                      .why = link.why});
  }
  const std::lock_guard lock(mutex_);
  published_ = std::move(states);
}

std::vector<LinkState> NcclCarrier::links() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void NcclCarrier::Detach(Link* link) {
  const PairId id = link->pair;
  if (id < 0) return;
  BATON_CHECK(!is_doing_);
  Pair& pair = pairs_.at(id);
  if (pair.was_up) Do(pair.receives ? receiving_.Kill(id) : sending_.Kill(id));
  pair.link = -1;
  link->pair = -1;
  link->is_up = link->is_peer_up = false;
  link->waited = {};
  std::erase_if(received_, [id](const auto& batch) { return batch.first.pair == id; });
  communicators_.Kill(id);
}

void NcclCarrier::Drop(Link* link, const std::string& why, bool tell) {
  if (link->pair < 0) return;
  if (tell) Say(*link, {.kind = Word::Kind::kDead});
  Detach(link);
  ++pairs_failed_;
  while (!link->failures.empty() && now_ - link->failures.front() > kMinute) {
    link->failures.pop_front();
  }
  link->failures.push_back(now_);
  const bool often = link->failures.size() >= kFailuresAMinute;
  link->next_offer =
      often ? link->failures.front() + kMinute : now_ + Scaled(options_.progress_limit) / 4;
  TellPath(link, /*up=*/false, why);
}

// The thread that makes and aborts communicators does not come back, and what it was to end may
// stand on the lane for ever: what another pair posts behind it would never end either.
void NcclCarrier::GiveUp() {
  for (auto& [id, link] : links_) {
    link.never = true;
    if (link.pair < 0) continue;
    Say(link, {.kind = Word::Kind::kNever});
    Drop(&link, "an abort of NCCL does not return", /*tell=*/false);
  }
  // Of pairs that were aborted in time too: the event behind theirs may never come.
  for (const auto& [id, pair] : pairs_) {
    if (!pair.was_up) continue;
    pair.receives ? Do(receiving_.OnAbortStuck(id)) : sending_.OnAbortStuck(id);
  }
  leaked_slots_ = sending_.slots().leaked() + receiving_.slots().leaked();
}

void NcclCarrier::OnEvent(const Communicators::Event& event) {
  using EventKind = Communicators::Event::Kind;
  const auto found = pairs_.find(event.pair);
  if (found == pairs_.end()) return;  // An operation of a stuck pair, whose slot is leaked.
  Pair& pair = found->second;
  Link* const link = LinkOf(event.pair);
  switch (event.kind) {
    case EventKind::kMade:
      if (link != nullptr) Say(*link, {.kind = Word::Kind::kId, .id = event.id});
      return;
    case EventKind::kUp:
      if (link != nullptr) OnUp(event.pair, link);
      return;
    case EventKind::kFailed:
      if (link != nullptr) Drop(link, std::string(event.status.message()), /*tell=*/true);
      return;
    case EventKind::kBegun:  // The peer is to send now: it reaches no lane before.
    case EventKind::kIssued:
      if (pair.receives) Do(receiving_.OnPosted(event.key));
      return;
    case EventKind::kEnded:
      if (link != nullptr) link->waited = {};
      pair.receives ? Do(receiving_.OnReceived(event.key)) : sending_.OnSent(event.key);
      return;
    case EventKind::kAborted:
      pair.is_aborted = true;
      if (!pair.was_up) return;
      pair.receives ? Do(receiving_.OnAborted(event.pair)) : sending_.OnAborted(event.pair);
      return;
    case EventKind::kStuck:
      ++pairs_stuck_;
      pair.is_aborted = true;
      GiveUp();  // Before its slots go to others.
      return;
  }
}

void NcclCarrier::OnTicketEnded(const BlockStager::Work& work) {
  if (!work.receiver) {
    for (auto& [key, batch] : sent_) {
      for (size_t i = 0; i < batch.frames.size(); ++i) {
        if (batch.frames[i].header.ticket == work.ticket) batch.ended.set(i);
      }
    }
    return;
  }
  std::vector<std::pair<BatchKey, FrameSet>> dropped;
  for (auto& [key, batch] : received_) {
    FrameSet frames;
    for (size_t i = 0; i < batch.frames.size(); ++i) {
      if (batch.frames[i].ticket == work.ticket) frames.set(i);
    }
    batch.ended |= frames;
    if (frames.any()) dropped.emplace_back(key, frames);
  }
  for (const auto& [key, frames] : dropped) Do(receiving_.DropFrames(key, frames));
}

// Both directions of a deadline: what this side waits for, and what the other side waits for here.
void NcclCarrier::WatchBatches(Link* link, Duration running) {
  const bool receives = link->peer.receives;
  const int open = receives ? receiving_.open(link->pair) : sending_.open(link->pair);
  const bool awaits = receives ? receiving_.AwaitsPeer(link->pair) : open > 0;
  link->waited = awaits ? link->waited + running : Duration{};
  link->silent = open > 0 ? link->silent + running : Duration{};
  if (receives && link->silent > Scaled(options_.progress_limit) / 4) {
    link->silent = {};
    Say(*link, {.kind = Word::Kind::kAlive});
  }
  if (link->waited > LimitOf(link->pair)) Drop(link, "no progress in time", /*tell=*/true);
}

void NcclCarrier::WatchLink(Link* link, Duration running) {
  if (link->pair < 0 || !link->is_up) return;
  if (link->is_peer_up) {
    WatchBatches(link, running);
    return;
  }
  link->waited += running;
  if (link->waited > Scaled(options_.limits.init_limit)) {
    Drop(link, "the peer's communicator was not there in time", /*tell=*/true);
  }
}

Duration NcclCarrier::LimitOf(PairId pair) const {
  double bytes = 0;
  for (const auto& [key, batch] : sent_) {
    if (key.pair != pair) continue;
    for (const CarriedFrame& frame : batch.frames) bytes += frame.header.payload_bytes;
  }
  for (const auto& [key, batch] : received_) {
    if (key.pair != pair) continue;
    for (const FrameHeader& frame : batch.frames) bytes += frame.payload_bytes;
  }
  const std::chrono::duration<double> expected(10 * bytes * kSecondsPerByte);
  return std::max(Scaled(options_.progress_limit),
                  std::chrono::duration_cast<Duration>(expected));
}

void NcclCarrier::WatchGrants(Duration running) {
  std::vector<std::pair<BatchKey, uint32_t>> unused;
  for (auto& [key, batch] : received_) {
    if (batch.grant == 0) continue;
    batch.granted_for += running;
    if (batch.granted_for <= Scaled(options_.progress_limit) / 4) continue;
    batch.granted_for = {};
    unused.emplace_back(key, batch.grant);
  }
  for (const auto& [key, grant] : unused) Do(receiving_.OnGrantUnused(key, grant));
}

void NcclCarrier::Turn(Time now) {
  const Duration running = std::clamp<Duration>(now - now_, Duration::zero(), kLongestSlice);
  now_ = now;
  for (Staging::Landed& landed : staging_->Collect()) OnLanded(std::move(landed));
  for (const Communicators::Event& event : communicators_.Turn(running)) OnEvent(event);
  int64_t over_nccl = 0;
  for (auto& [id, link] : links_) {
    const bool offers = link.peer.receives && link.pair < 0 && !link.never;
    if (offers && now >= link.next_offer) Offer(id, &link);
    WatchLink(&link, running);
    over_nccl += CanCarry(link) ? 1 : 0;
  }
  links_over_nccl_ = over_nccl;
  links_over_tcp_ = static_cast<int64_t>(links_.size()) - over_nccl;
  WatchGrants(running);
  PublishLinks();
  held_slots_ = sending_.slots().held() + receiving_.slots().held();
  std::erase_if(pairs_, [this](const auto& entry) {
    const auto& [id, pair] = entry;
    return pair.is_aborted && sending_.RemovePair(id) && receiving_.RemovePair(id);
  });
}

bool NcclCarrier::busy() const { return !staging_->idle() || communicators_.busy(); }

Time NcclCarrier::NextDeadline() const {
  Time next = communicators_.waits() ? now_ + kInitPoll : kNever;
  for (const auto& [id, link] : links_) {
    if (link.pair < 0) {
      if (link.peer.receives && !link.never) next = std::min(next, link.next_offer);
    } else if (!CanCarry(link) || sending_.open(link.pair) > 0 || receiving_.open(link.pair) > 0) {
      next = std::min(next, now_ + Scaled(options_.progress_limit) / 16);
    }
  }
  return next;
}

void NcclCarrier::Shutdown() {
  while (!links_.empty()) Close(links_.begin()->first);
  const absl::Status quiet =
      WaitUntil("NCCL", kDeviceLimit, [this]() -> absl::StatusOr<bool> {
        Turn(options_.now());
        return !communicators_.waits() && staging_->idle();
      });
  if (quiet.ok() && !communicators_.stuck()) return;
  options_.on_lost(absl::UnavailableError(
      "NCCL: an abort has not returned, and the GPU cannot be left while it has not"));
}

CarrierCounters NcclCarrier::counters() const {
  return {.pairs_up = pairs_up_,
          .pairs_failed = pairs_failed_,
          .pairs_condemned = pairs_condemned_,
          .pairs_stuck = pairs_stuck_,
          .leaked_slots = leaked_slots_,
          .held_slots = held_slots_,
          .links_over_nccl = links_over_nccl_,
          .links_over_tcp = links_over_tcp_};
}

}  // namespace baton::nccl
