#include "common/transport/tcp/connections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/transport/pair_key.h"
#include "common/transport/push_plan.h"

namespace baton {
namespace {

constexpr size_t kScratchBytes = 64 << 10;

absl::Status Closing() { return absl::CancelledError("KV transfer: the transport is closing"); }

}  // namespace

Connections::Connections(const TcpOptions& options, CounterBoard* counters, Network* network)
    : options_(options),
      counters_(counters),
      network_(network),
      scratch_(kScratchBytes),
      ledger_(options.transport, counters,
              [this](TransferEvent event) { OnTicketEvent(std::move(event)); }) {
  if (options_.tls) MakeTls();
}

void Connections::MakeTls() {
  auto made = TlsStreamContext::Create([this](const TlsPair& pair) -> std::optional<PairKey> {
    if (pair.receiver != options_.transport.incarnation || pair.sender == 0) return std::nullopt;
    return DerivePairKey(options_.transport.secret, pair.sender, pair.receiver);
  });
  BATON_CHECK(made.ok());
  tls_ = *std::move(made);
}

Duration Connections::Scaled(Duration d) const {
  return std::chrono::duration_cast<Duration>(d * options_.time_scale);
}

// Ledger and outgoing links report here, so that the bookkeeping agrees with what the node is told.
// From an end on nothing is launched for the ticket; the node hears of it once what was has landed.
void Connections::OnTicketEvent(TransferEvent event) {
  if (event.kind == TransferEvent::Kind::kEnded) {
    if (event.receiver) {
      for (auto& [id, entry] : links_) {
        if (entry.incoming != nullptr) {
          entry.incoming->OnTicketEnded(event.ticket, event.status.ok());
        }
      }
    } else {
      sending_.erase(event.ticket);
    }
    const BlockStager::Work work{event.ticket, event.receiver};
    if (carrier() != nullptr) carrier()->OnTicketEnded(work);
    if (IsLanding(work)) {
      parked_.emplace(work, std::move(event));
      return;
    }
  }
  options_.transport.sink(std::move(event));
}

bool Connections::IsLanding(const BlockStager::Work& work) const {
  const BlockStager* const stager = options_.transport.stager;
  return (stager != nullptr && stager->Busy(work) > 0) ||
         (carrier() != nullptr && carrier()->Busy(work) > 0);
}

bool Connections::staging() const {
  return (options_.transport.stager != nullptr && !options_.transport.stager->idle()) ||
         (carrier() != nullptr && carrier()->busy());
}

void Connections::CollectStaged() {
  if (BlockStager* const stager = options_.transport.stager; stager != nullptr && !stager->idle()) {
    stager->Collect();
  }
  if (carrier() != nullptr) carrier()->Turn(now_);
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (IsLanding(it->first)) {
      ++it;
      continue;
    }
    options_.transport.sink(std::move(it->second));
    it = parked_.erase(it);
  }
}

void Connections::Execute(TransportCall call) {
  if (auto* expect = std::get_if<ExpectArgs>(&call)) {
    if (parked_.contains({expect->ticket, /*receiver=*/true})) {
      counters_->Add(&TransportCounters::ignored_calls);
      return;
    }
    ledger_.Expect(std::move(*expect));
    if (stopped_) ledger_.EndAll(Closing());
  } else if (auto* start = std::get_if<StartArgs>(&call)) {
    Start(std::move(*start));
  } else if (auto* push = std::get_if<PushArgs>(&call)) {
    if (OutgoingLink* link = LinkOf(push->ticket)) link->Push(*push, now_);
  } else if (auto* finish = std::get_if<FinishArgs>(&call)) {
    if (OutgoingLink* link = LinkOf(finish->ticket)) link->Finish(std::move(*finish), now_);
  } else {
    Abort(std::get<AbortArgs>(call).ticket);
  }
}

OutgoingLink* Connections::LinkOf(TicketId ticket) {
  auto it = sending_.find(ticket);
  if (it != sending_.end()) return it->second;
  counters_->Add(&TransportCounters::ignored_calls);
  return nullptr;
}

void Connections::Start(StartArgs args) {
  if (sending_.contains(args.ticket) || parked_.contains({args.ticket, /*receiver=*/false})) {
    counters_->Add(&TransportCounters::ignored_calls);
    return;
  }
  absl::StatusOr<OutgoingLink*> link = LinkTo(args);
  if (!link.ok()) {
    options_.transport.sink({.ticket = args.ticket, .status = link.status()});
    return;
  }
  sending_.emplace(args.ticket, *link);
  (*link)->Start(std::move(args));
}

absl::StatusOr<OutgoingLink*> Connections::LinkTo(const StartArgs& args) {
  if (stopped_) return Closing();
  if (absl::Status status = CheckStart(options_.transport, args); !status.ok()) return status;
  for (auto& [id, entry] : links_) {
    if (entry.outgoing != nullptr && entry.closing.ok() &&
        entry.outgoing->receiver() == args.receiver &&
        entry.outgoing->receiver_place() == args.receiver_place) {
      return entry.outgoing;
    }
  }
  if (!RoomForOutgoing()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "KV transfers to ", options_.max_outgoing, " receivers are under way; raise max_outgoing"));
  }
  auto stream = network_->Connect(args.endpoint);
  if (!stream.ok()) return stream.status();
  if (tls_ != nullptr) {
    *stream = TlsStream::ToReceiver(*tls_, *std::move(stream),
                                    {options_.transport.incarnation, args.receiver}, args.key);
  }
  TransportOptions reporting = options_.transport;
  reporting.sink = [this](TransferEvent event) { OnTicketEvent(std::move(event)); };
  auto link = std::make_unique<OutgoingLink>(
      *std::move(stream),
      OutgoingLink::Options{.transport = std::move(reporting),
                            .stream = {counters_, scratch_},
                            .counters = counters_,
                            .receiver = args.receiver,
                            .receiver_place = args.receiver_place,
                            .key = args.key,
                            .handshake_timeout = Scaled(options_.handshake_timeout),
                            .min_progress_timeout = Scaled(options_.min_progress_timeout)},
      now_);
  OutgoingLink* raw = link.get();
  const uint64_t id = next_id_++;
  Entry& entry = links_[id] = {.link = std::move(link), .outgoing = raw};
  if (!Watch(id, &entry, {.write = true})) {
    links_.erase(id);
    return absl::ResourceExhaustedError("the KV transport cannot watch another socket");
  }
  counters_->Add(&TransportCounters::opened_connections);
  return raw;
}

bool Connections::RoomForOutgoing() {
  int open = 0;
  Entry* idle = nullptr;
  for (auto& [id, entry] : links_) {
    if (entry.outgoing == nullptr || !entry.closing.ok()) continue;
    ++open;
    if (idle == nullptr && entry.outgoing->idle()) idle = &entry;
  }
  if (open < options_.max_outgoing) return true;
  if (idle == nullptr) return false;
  idle->closing = absl::ResourceExhaustedError("idle, and its place is needed");
  return true;
}

void Connections::Abort(TicketId ticket) {
  bool known = false;
  if (auto it = sending_.find(ticket); it != sending_.end()) {
    known = true;
    it->second->Abort(ticket);
  }
  if (const Incarnation sender = ledger_.SenderOf(ticket); sender != 0) {
    known = true;
    for (auto& [id, entry] : links_) {
      if (entry.incoming != nullptr && entry.closing.ok() &&
          entry.incoming->sender().incarnation == sender) {
        entry.incoming->SendAbort(ticket, AbortCode::kCancelled);
      }
    }
    ledger_.Fail(ticket, absl::CancelledError("KV transfer: aborted here"));
  }
  if (!known) counters_->Add(&TransportCounters::ignored_calls);
}

void Connections::Accept(std::unique_ptr<ByteStream> stream) {
  int incoming = 0;
  int unknown = 0;
  Entry* oldest_unknown = nullptr;
  for (auto& [id, entry] : links_) {
    if (entry.incoming == nullptr || !entry.closing.ok()) continue;
    ++incoming;
    if (entry.incoming->sender().incarnation != 0) continue;
    ++unknown;
    if (oldest_unknown == nullptr) oldest_unknown = &entry;
  }
  if (incoming >= options_.max_incoming) {
    counters_->Add(&TransportCounters::refused_connections);
    return;
  }
  if (unknown >= options_.max_unauthenticated) {
    counters_->Add(&TransportCounters::refused_connections);
    oldest_unknown->closing = absl::ResourceExhaustedError("too many without a handshake");
  }
  if (tls_ != nullptr) stream = TlsStream::FromSender(*tls_, std::move(stream));
  auto link = std::make_unique<IncomingLink>(
      std::move(stream),
      IncomingLink::Options{.transport = &options_.transport,
                            .stream = {counters_, scratch_},
                            .ledger = &ledger_,
                            .counters = counters_,
                            .handshake_deadline = now_ + Scaled(options_.handshake_timeout),
                            .reminder_interval = Scaled(options_.min_progress_timeout) / 4,
                            .on_unknown_ticket = [this] { network_->ExecuteCalls(); },
                            .on_authenticated = [this](IncomingLink* l) { OnAuthenticated(l); }});
  IncomingLink* raw = link.get();
  const uint64_t id = next_id_++;
  Entry& entry = links_[id] = {.link = std::move(link), .incoming = raw};
  if (!Watch(id, &entry, {})) {
    links_.erase(id);
    return;
  }
  counters_->Add(&TransportCounters::accepted_connections);
}

// The rank opened a new connection, so it has given the old one up; two of them would be two
// writers.
void Connections::OnAuthenticated(IncomingLink* link) {
  for (auto& [id, entry] : links_) {
    if (entry.incoming == nullptr || entry.incoming == link || !entry.closing.ok() ||
        entry.incoming->sender() != link->sender()) {
      continue;
    }
    entry.closing = absl::UnavailableError("KV transfer: the sender opened a new connection");
    entry.incoming->Supersede(entry.closing);
  }
}

void Connections::RunTimers() {
  for (auto& [id, entry] : links_) {
    if (entry.closing.ok() && now_ >= entry.link->NextDeadline()) {
      entry.closing.Update(entry.link->OnTimer(now_));
    }
  }
}

// Calls, timers and the stager may have left frames to write on connections whose socket has room.
// Who is the first to find no slot free is the first of the next turn: no connection takes the
// slots of the others for ever.
void Connections::PumpAll() {
  const auto first = links_.lower_bound(std::exchange(first_pumped_, 0));
  for (auto it = first; it != links_.end(); ++it) Pump(it->first, &it->second);
  for (auto it = links_.begin(); it != first; ++it) Pump(it->first, &it->second);
}

void Connections::Pump(uint64_t id, Entry* entry) {
  if (!entry->closing.ok()) return;
  const bool connecting = entry->outgoing != nullptr && entry->outgoing->connecting();
  if (!connecting) {
    const bool readable = entry->link->stream().has_unread();
    entry->closing.Update(entry->link->OnReady(readable, false, now_));
  }
  if (first_pumped_ == 0 && entry->link->wants_slot()) first_pumped_ = id;
  FrameStream& stream = entry->link->stream();
  const Network::Interest interest{.read = !stream.paused(),
                                   .write = connecting || (stream.wants_write() &&
                                                           !stream.bytes().AwaitsPeer())};
  if (entry->closing.ok() && !Watch(id, entry, interest)) {
    entry->closing = absl::InternalError("the KV transport cannot watch a socket");
  }
}

void Connections::CloseDead() {
  for (auto it = links_.begin(); it != links_.end();) {
    if (it->second.closing.ok()) {
      ++it;
      continue;
    }
    it->second.link->OnClosed(it->second.closing);
    counters_->Add(&TransportCounters::closed_connections);
    it = links_.erase(it);
  }
}

void Connections::Shutdown() {
  stopped_ = true;
  ledger_.EndAll(Closing());
  for (auto& [id, entry] : links_) entry.closing = Closing();
  CloseDead();
  network_->ExecuteCalls();
  if (carrier() != nullptr) carrier()->Shutdown();
  if (staging()) options_.transport.stager->AwaitQuiet();
  CollectStaged();
  BATON_CHECK(sending_.empty() && parked_.empty());
}

bool Connections::Watch(uint64_t id, Entry* entry, const Network::Interest& interest) {
  if (entry->watched == interest) return true;
  if (!network_->Watch(id, entry->link->stream().bytes(), interest, !entry->watched)) return false;
  entry->watched = interest;
  return true;
}

void Connections::Serve(uint64_t id, bool readable, bool writable) {
  auto it = links_.find(id);
  if (it == links_.end() || !it->second.closing.ok()) return;
  it->second.closing.Update(it->second.link->OnReady(readable, writable, now_));
}

Time Connections::NextDeadline() const {
  Time next = carrier() == nullptr ? kNever : carrier()->NextDeadline();
  for (const auto& [id, entry] : links_) {
    if (entry.link->stream().has_unread()) return now_;
    next = std::min(next, entry.link->NextDeadline());
  }
  return next;
}

void Connections::EndTurn() {
  RunTimers();
  CloseDead();
  CollectStaged();
  PumpAll();
  CloseDead();
}

}  // namespace baton
