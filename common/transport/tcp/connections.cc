#include "common/transport/tcp/connections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
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
              [this](TransferEvent event) { OnTicketEvent(std::move(event)); }) {}

Duration Connections::Scaled(Duration d) const {
  return std::chrono::duration_cast<Duration>(d * options_.time_scale);
}

// Ledger and outgoing links report here, so that the bookkeeping agrees with what the node is told.
void Connections::OnTicketEvent(TransferEvent event) {
  if (event.kind == TransferEvent::Kind::kEnded) {
    if (event.receiver) {
      for (auto& [id, entry] : links_) {
        if (entry.incoming != nullptr) entry.incoming->stream().DivertPayload(event.ticket);
      }
    } else {
      sending_.erase(event.ticket);
    }
  }
  options_.transport.sink(std::move(event));
}

void Connections::Execute(TransportCall call) {
  if (auto* expect = std::get_if<ExpectArgs>(&call)) {
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
  if (sending_.contains(args.ticket)) {
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
        entry.outgoing->receiver() == args.receiver) {
      return entry.outgoing;
    }
  }
  if (!RoomForOutgoing()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "KV transfers to ", options_.max_outgoing, " receivers are under way; raise max_outgoing"));
  }
  auto stream = network_->Connect(args.endpoint);
  if (!stream.ok()) return stream.status();
  TransportOptions reporting = options_.transport;
  reporting.sink = [this](TransferEvent event) { OnTicketEvent(std::move(event)); };
  auto link = std::make_unique<OutgoingLink>(
      *std::move(stream),
      OutgoingLink::Options{.transport = std::move(reporting),
                            .stream = {counters_, scratch_},
                            .counters = counters_,
                            .receiver = args.receiver,
                            .key = args.key,
                            .handshake_timeout = Scaled(options_.handshake_timeout),
                            .min_progress_timeout = Scaled(options_.min_progress_timeout)},
      now_);
  OutgoingLink* raw = link.get();
  const uint64_t id = next_id_++;
  Entry& entry = links_[id] = {.link = std::move(link), .outgoing = raw};
  if (!Watch(id, &entry, /*write=*/true)) {
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
    ledger_.Fail(ticket, absl::CancelledError("KV transfer: aborted here"));
    for (auto& [id, entry] : links_) {
      if (entry.incoming != nullptr && entry.closing.ok() && entry.incoming->sender() == sender) {
        entry.incoming->SendAbort(ticket, AbortCode::kCancelled);
      }
    }
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
    if (entry.incoming->sender() != 0) continue;
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
  auto link = std::make_unique<IncomingLink>(
      std::move(stream),
      IncomingLink::Options{.transport = &options_.transport,
                            .stream = {counters_, scratch_},
                            .ledger = &ledger_,
                            .counters = counters_,
                            .handshake_deadline = now_ + Scaled(options_.handshake_timeout),
                            .on_unknown_ticket = [this] { network_->ExecuteCalls(); },
                            .on_authenticated = [this](IncomingLink* l) { OnAuthenticated(l); }});
  IncomingLink* raw = link.get();
  const uint64_t id = next_id_++;
  Entry& entry = links_[id] = {.link = std::move(link), .incoming = raw};
  if (!Watch(id, &entry, /*write=*/false)) {
    links_.erase(id);
    return;
  }
  counters_->Add(&TransportCounters::accepted_connections);
}

// The sender opened a new connection, so it has given the old one up; two of them would be two
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

// Calls and timers may have left frames to write on connections whose socket has room.
void Connections::PumpAll() {
  for (auto& [id, entry] : links_) {
    if (!entry.closing.ok()) continue;
    const bool connecting = entry.outgoing != nullptr && entry.outgoing->connecting();
    if (!connecting) entry.closing.Update(entry.link->OnReady(false, false, now_));
    const bool write = connecting || entry.link->stream().wants_write();
    if (entry.closing.ok() && !Watch(id, &entry, write)) {
      entry.closing = absl::InternalError("the KV transport cannot watch a socket");
    }
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
  BATON_CHECK(sending_.empty());
}

bool Connections::Watch(uint64_t id, Entry* entry, bool write) {
  if (entry->watched && entry->watched_for_write == write) return true;
  if (!network_->Watch(id, entry->link->stream().bytes(), write, !entry->watched)) return false;
  entry->watched = true;
  entry->watched_for_write = write;
  return true;
}

void Connections::Serve(uint64_t id, bool readable, bool writable) {
  auto it = links_.find(id);
  if (it == links_.end() || !it->second.closing.ok()) return;
  it->second.closing.Update(it->second.link->OnReady(readable, writable, now_));
}

Time Connections::NextDeadline() const {
  Time next = kNever;
  for (const auto& [id, entry] : links_) next = std::min(next, entry.link->NextDeadline());
  return next;
}

void Connections::EndTurn() {
  RunTimers();
  CloseDead();
  PumpAll();
  CloseDead();
}

}  // namespace baton
