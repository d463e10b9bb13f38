#include "common/transport/tcp/progress_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/transport/push_plan.h"
#include "common/transport/tcp/monotonic_clock.h"

namespace baton {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kListenerId = 1;
constexpr size_t kScratchBytes = 64 << 10;
constexpr int kAcceptsPerTurn = 64;
constexpr Duration kListenPause = std::chrono::milliseconds(100);

absl::Status AddToEpoll(int epoll, int fd, uint64_t id) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError("the KV transport cannot watch its sockets");
}

absl::Status Closing() { return absl::CancelledError("KV transfer: the transport is closing"); }

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressLoop>> ProgressLoop::Create(const TcpOptions& options,
                                                                   FileDescriptor listener,
                                                                   CallQueue* calls,
                                                                   CounterBoard* counters) {
  std::unique_ptr<ProgressLoop> loop(
      new ProgressLoop(options, std::move(listener), calls, counters));
  if (!loop->epoll_.open()) return absl::InternalError("the KV transport has no epoll");
  absl::Status status = AddToEpoll(loop->epoll_.get(), calls->wake_fd(), kWakeId);
  status.Update(AddToEpoll(loop->epoll_.get(), loop->listener_.get(), kListenerId));
  if (!status.ok()) return status;
  return loop;
}

ProgressLoop::ProgressLoop(const TcpOptions& options, FileDescriptor listener, CallQueue* calls,
                           CounterBoard* counters)
    : options_(options),
      calls_(calls),
      counters_(counters),
      listener_(std::move(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      scratch_(kScratchBytes),
      ledger_(options.transport, counters,
              [this](TransferEvent event) { OnTicketEvent(std::move(event)); }),
      now_(MonotonicNow()) {}

Duration ProgressLoop::Scaled(Duration d) const {
  return std::chrono::duration_cast<Duration>(d * options_.time_scale);
}

// Ledger and outgoing links report here, so that the bookkeeping agrees with what the node is told.
void ProgressLoop::OnTicketEvent(TransferEvent event) {
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

void ProgressLoop::ExecuteCalls() {
  for (TransportCall& call : calls_->Take()) Execute(std::move(call));
}

void ProgressLoop::Execute(TransportCall call) {
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

OutgoingLink* ProgressLoop::LinkOf(TicketId ticket) {
  auto it = sending_.find(ticket);
  if (it != sending_.end()) return it->second;
  counters_->Add(&TransportCounters::ignored_calls);
  return nullptr;
}

void ProgressLoop::Start(StartArgs args) {
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

absl::StatusOr<OutgoingLink*> ProgressLoop::LinkTo(const StartArgs& args) {
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
  auto socket = ConnectTcp(args.endpoint);
  if (!socket.ok()) return socket.status();
  TransportOptions reporting = options_.transport;
  reporting.sink = [this](TransferEvent event) { OnTicketEvent(std::move(event)); };
  auto link = std::make_unique<OutgoingLink>(
      *std::move(socket),
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
  if (!Watch(id, &entry, EPOLLIN | EPOLLOUT)) {
    links_.erase(id);
    return absl::ResourceExhaustedError("the KV transport cannot watch another socket");
  }
  counters_->Add(&TransportCounters::opened_connections);
  return raw;
}

bool ProgressLoop::RoomForOutgoing() {
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

void ProgressLoop::Abort(TicketId ticket) {
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

void ProgressLoop::AcceptConnections() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    auto socket = AcceptTcp(listener_);
    if (socket.ok()) {
      AddIncoming(*std::move(socket));
      continue;
    }
    if (absl::IsResourceExhausted(socket.status())) {
      counters_->Add(&TransportCounters::refused_connections);
      listen_again_ = now_ + kListenPause;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    }
    return;
  }
}

void ProgressLoop::AddIncoming(FileDescriptor socket) {
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
      std::move(socket),
      IncomingLink::Options{.transport = &options_.transport,
                            .stream = {counters_, scratch_},
                            .ledger = &ledger_,
                            .counters = counters_,
                            .handshake_deadline = now_ + Scaled(options_.handshake_timeout),
                            .on_unknown_ticket = [this] { ExecuteCalls(); },
                            .on_authenticated = [this](IncomingLink* l) { OnAuthenticated(l); }});
  IncomingLink* raw = link.get();
  const uint64_t id = next_id_++;
  Entry& entry = links_[id] = {.link = std::move(link), .incoming = raw};
  if (!Watch(id, &entry, EPOLLIN)) {
    links_.erase(id);
    return;
  }
  counters_->Add(&TransportCounters::accepted_connections);
}

// The sender opened a new connection, so it has given the old one up; two of them would be two
// writers.
void ProgressLoop::OnAuthenticated(IncomingLink* link) {
  for (auto& [id, entry] : links_) {
    if (entry.incoming == nullptr || entry.incoming == link || !entry.closing.ok() ||
        entry.incoming->sender() != link->sender()) {
      continue;
    }
    entry.closing = absl::UnavailableError("KV transfer: the sender opened a new connection");
    entry.incoming->Supersede(entry.closing);
  }
}

bool ProgressLoop::Watch(uint64_t id, Entry* entry, uint32_t interest) {
  if (entry->interest == interest) return true;
  epoll_event event{.events = interest, .data = {.u64 = id}};
  const int op = entry->interest == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), op, entry->link->stream().fd(), &event) != 0) return false;
  entry->interest = interest;
  return true;
}

void ProgressLoop::ServeLink(uint64_t id, uint32_t events) {
  auto it = links_.find(id);
  if (it == links_.end() || !it->second.closing.ok()) return;
  const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
  it->second.closing.Update(it->second.link->OnReady(broken || (events & EPOLLIN) != 0,
                                                     broken || (events & EPOLLOUT) != 0, now_));
}

void ProgressLoop::RunTimers() {
  for (auto& [id, entry] : links_) {
    if (entry.closing.ok() && now_ >= entry.link->NextDeadline()) {
      entry.closing.Update(entry.link->OnTimer(now_));
    }
  }
  if (now_ >= listen_again_) {
    listen_again_ = kNever;
    if (!AddToEpoll(epoll_.get(), listener_.get(), kListenerId).ok()) {
      listen_again_ = now_ + kListenPause;
    }
  }
}

// Calls and timers may have left frames to write on connections whose socket has room.
void ProgressLoop::PumpAll() {
  for (auto& [id, entry] : links_) {
    if (!entry.closing.ok()) continue;
    const bool connecting = entry.outgoing != nullptr && entry.outgoing->connecting();
    if (!connecting) entry.closing.Update(entry.link->OnReady(false, false, now_));
    const bool write = connecting || entry.link->stream().wants_write();
    if (entry.closing.ok() && !Watch(id, &entry, EPOLLIN | (write ? uint32_t{EPOLLOUT} : 0u))) {
      entry.closing = absl::InternalError("the KV transport cannot watch a socket");
    }
  }
}

void ProgressLoop::CloseDead() {
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

int ProgressLoop::WaitMs() const {
  Time next = listen_again_;
  for (const auto& [id, entry] : links_) next = std::min(next, entry.link->NextDeadline());
  if (next == kNever) return -1;
  const double ms = std::ceil(ToSeconds(next - now_) * 1e3);
  return static_cast<int>(std::clamp(ms, 0.0, 60e3));
}

bool ProgressLoop::Poll() {
  now_ = MonotonicNow();
  PumpAll();
  CloseDead();
  epoll_event events[64];
  const int n = ::epoll_wait(epoll_.get(), events, 64, WaitMs());
  now_ = MonotonicNow();
  if (calls_->stopped()) {
    Shutdown();
    return false;
  }
  ExecuteCalls();
  bool accept = false;
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u64 == kListenerId) {
      accept = true;
    } else if (events[i].data.u64 != kWakeId) {
      ServeLink(events[i].data.u64, events[i].events);
    }
  }
  if (accept) AcceptConnections();
  RunTimers();
  CloseDead();
  return true;
}

void ProgressLoop::Shutdown() {
  stopped_ = true;
  ledger_.EndAll(Closing());
  for (auto& [id, entry] : links_) entry.closing = Closing();
  CloseDead();
  ExecuteCalls();
  BATON_CHECK(sending_.empty());
}

}  // namespace baton
