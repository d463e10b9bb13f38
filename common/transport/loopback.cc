#include "common/transport/loopback.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/transport/push_plan.h"

namespace baton {
namespace {

// Both lists hold the same number of bytes.
void CopyMemory(const std::vector<iovec>& from, const std::vector<iovec>& to) {
  size_t f = 0, f_at = 0, t = 0, t_at = 0;
  while (f < from.size() && t < to.size()) {
    const size_t n = std::min(from[f].iov_len - f_at, to[t].iov_len - t_at);
    std::memcpy(static_cast<std::byte*>(to[t].iov_base) + t_at,
                static_cast<const std::byte*>(from[f].iov_base) + f_at, n);
    f_at += n;
    t_at += n;
    if (f_at == from[f].iov_len) ++f, f_at = 0;
    if (t_at == to[t].iov_len) ++t, t_at = 0;
  }
  BATON_CHECK(f == from.size() && t == to.size());
}

}  // namespace

void LoopbackHub::Deliver(std::unique_lock<std::mutex>& lock) {
  if (delivering_) return;
  delivering_ = true;
  while (!mail_.empty()) {
    Mail mail = std::move(mail_.front());
    mail_.pop_front();
    delivering_to_ = mail.to;
    lock.unlock();
    mail.to->options_.sink(std::move(mail.event));
    lock.lock();
    delivering_to_ = nullptr;
    delivered_.notify_all();
  }
  delivering_ = false;
  delivered_.notify_all();
}

absl::StatusOr<std::unique_ptr<LoopbackKvTransport>> LoopbackKvTransport::Create(
    std::shared_ptr<LoopbackHub> hub, std::string endpoint, TransportOptions options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (options.stager != nullptr) {
    return absl::InvalidArgumentError("a loopback transport copies at once and takes no stager");
  }
  std::unique_ptr<LoopbackKvTransport> transport(
      new LoopbackKvTransport(hub, std::move(endpoint), std::move(options)));
  std::lock_guard lock(hub->mutex_);
  if (!hub->endpoints_.emplace(transport->endpoint_, transport.get()).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("loopback endpoint ", transport->endpoint_, " is taken"));
  }
  return transport;
}

LoopbackKvTransport::LoopbackKvTransport(std::shared_ptr<LoopbackHub> hub, std::string endpoint,
                                         TransportOptions options)
    : hub_(std::move(hub)),
      endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      ledger_(options_, &counters_,
              [this](TransferEvent event) { OnTicketEvent(std::move(event)); }) {}

LoopbackKvTransport::~LoopbackKvTransport() {
  std::unique_lock lock(hub_->mutex_);
  if (auto it = hub_->endpoints_.find(endpoint_);
      it != hub_->endpoints_.end() && it->second == this) {
    hub_->endpoints_.erase(it);
  }
  ledger_.EndAll(absl::CancelledError("the transport is closing"));
  while (!outgoing_.empty()) {
    EndOutgoing(outgoing_.begin(), absl::CancelledError("the transport is closing"));
  }
  const absl::Status lost = absl::UnavailableError("KV transfer: the peer's transport is gone");
  for (auto& [name, peer] : hub_->endpoints_) {
    peer->ledger_.SenderLost(self(), lost);
    for (auto it = peer->outgoing_.begin(); it != peer->outgoing_.end();) {
      auto next = std::next(it);
      if (it->second.peer == this) peer->EndOutgoing(it, lost);
      it = next;
    }
  }
  for (auto& [name, transport] : hub_->endpoints_) transport->TellSenders();
  hub_->Deliver(lock);
  hub_->delivered_.wait(lock, [this] {
    return hub_->delivering_to_ != this &&
           std::none_of(hub_->mail_.begin(), hub_->mail_.end(),
                        [this](const LoopbackHub::Mail& m) { return m.to == this; });
  });
}

void LoopbackKvTransport::Locked(const std::function<void()>& call) {
  std::unique_lock lock(hub_->mutex_);
  call();
  for (auto& [name, transport] : hub_->endpoints_) transport->TellSenders();
  hub_->Deliver(lock);
}

void LoopbackKvTransport::OnTicketEvent(TransferEvent event) {
  if (event.kind == TransferEvent::Kind::kEnded) ended_[event.ticket] = event.status.ok();
  Post(std::move(event));
}

void LoopbackKvTransport::TellSenders() {
  for (const auto& [ticket, verified] : std::exchange(ended_, {})) {
    for (auto& [name, sender] : hub_->endpoints_) {
      auto it = sender->outgoing_.find(ticket);
      if (it == sender->outgoing_.end() || it->second.peer != this) continue;
      sender->EndOutgoing(it,
                          verified ? absl::OkStatus() : StatusOfAbort(AbortCode::kCancelled));
    }
  }
}

void LoopbackKvTransport::Post(TransferEvent event) {
  hub_->mail_.push_back({this, std::move(event)});
}

void LoopbackKvTransport::EndOutgoing(OutgoingMap::iterator it, absl::Status status) {
  TransferEvent event{.ticket = it->first, .status = std::move(status), .bytes = it->second.bytes};
  outgoing_.erase(it);
  Post(std::move(event));
}

void LoopbackKvTransport::Expect(ExpectArgs args) {
  Locked([&] { ledger_.Expect(std::move(args)); });
}

absl::StatusOr<LoopbackKvTransport*> LoopbackKvTransport::FindPeer(const StartArgs& args) const {
  if (absl::Status status = CheckStart(options_, args); !status.ok()) return status;
  auto it = hub_->endpoints_.find(args.endpoint);
  if (it == hub_->endpoints_.end()) {
    return absl::UnavailableError(absl::StrCat("no loopback endpoint ", args.endpoint));
  }
  LoopbackKvTransport* peer = it->second;
  if (peer->options_.incarnation != args.receiver ||
      peer->options_.place != args.receiver_place) {
    return StatusOfAbort(AbortCode::kWrongReceiver);
  }
  if (ShapeOf(peer->options_).heads != HeadsAt(options_, args.receiver_place)) {
    return StatusOfAbort(AbortCode::kProtocol);
  }
  if (DerivePairKey(peer->options_.secret, args.sender, args.receiver) != args.key) {
    peer->counters_.Add(&TransportCounters::failed_handshakes);
    return StatusOfAbort(AbortCode::kUnauthenticated);
  }
  return peer;
}

void LoopbackKvTransport::Start(StartArgs args) {
  Locked([&] {
    if (outgoing_.contains(args.ticket)) {
      counters_.Add(&TransportCounters::ignored_calls);
      return;
    }
    const TicketId ticket = args.ticket;
    absl::StatusOr<LoopbackKvTransport*> peer = FindPeer(args);
    auto it = outgoing_.emplace(ticket, Outgoing{.args = std::move(args)}).first;
    if (peer.ok()) {
      it->second.peer = *peer;
    } else {
      EndOutgoing(it, peer.status());
    }
  });
}

void LoopbackKvTransport::Push(PushArgs args) {
  Locked([&] { PushLocked(args); });
}

void LoopbackKvTransport::PushLocked(const PushArgs& args) {
  auto it = outgoing_.find(args.ticket);
  if (it == outgoing_.end()) {
    counters_.Add(&TransportCounters::ignored_calls);
    return;
  }
  auto frames = PlanPush(options_, it->second.args, args,
                         it->second.peer->options_.cache->layout().block_size);
  if (!frames.ok()) {
    it->second.peer->ledger_.Fail(args.ticket, StatusOfAbort(AbortCode::kCancelled),
                                  self());
    EndOutgoing(it, frames.status());
    return;
  }
  for (const FrameRange& range : *frames) {
    if (AbortCode code = SendFrame(&it->second, range); code != AbortCode::kNone) {
      EndOutgoing(it, StatusOfAbort(code));
      return;
    }
  }
}

AbortCode LoopbackKvTransport::SendFrame(Outgoing* outgoing, const FrameRange& range) {
  const std::vector<iovec> from =
      FrameMemory(*options_.cache, range, outgoing->args.blocks, ShapeOf(options_).heads.first);
  FrameHeader header{.type = FrameType::kData, .ticket = outgoing->args.ticket, .range = range};
  for (const iovec& part : from) header.payload_bytes += part.iov_len;
  ReceiveLedger& ledger = outgoing->peer->ledger_;
  ReceiveLedger::Admission admission = ledger.Admit(header, self());
  if (admission.kind == ReceiveLedger::Admission::Kind::kRefused) return admission.code;
  if (admission.kind == ReceiveLedger::Admission::Kind::kWrite) {
    CopyMemory(from, admission.memory);
    ledger.Commit(header, self());
  }
  outgoing->bytes += header.payload_bytes;
  counters_.Add(&TransportCounters::frames_sent);
  counters_.Add(&TransportCounters::bytes_sent, header.payload_bytes);
  return AbortCode::kNone;
}

void LoopbackKvTransport::Finish(FinishArgs args) {
  Locked([&] { FinishLocked(args); });
}

void LoopbackKvTransport::FinishLocked(const FinishArgs& args) {
  auto it = outgoing_.find(args.ticket);
  if (it == outgoing_.end()) {
    counters_.Add(&TransportCounters::ignored_calls);
    return;
  }
  const FinalBody body{args.digests, it->second.args.num_tokens, args.first};
  // The codec bounds what a final frame can carry; loopback must refuse the same.
  if (auto bytes = EncodeFinal(body); !bytes.ok()) {
    it->second.peer->ledger_.Fail(args.ticket, StatusOfAbort(AbortCode::kCancelled),
                                  self());
    EndOutgoing(it, bytes.status());
    return;
  }
  const AbortCode code = it->second.peer->ledger_.Finish(args.ticket, self(), body);
  if (code != AbortCode::kNone) EndOutgoing(it, StatusOfAbort(code));
}

void LoopbackKvTransport::Abort(TicketId ticket) {
  Locked([&] {
    bool known = false;
    if (auto it = outgoing_.find(ticket); it != outgoing_.end()) {
      known = true;
      LoopbackKvTransport* peer = it->second.peer;
      EndOutgoing(it, absl::CancelledError("KV transfer: aborted here"));
      peer->ledger_.Fail(ticket, StatusOfAbort(AbortCode::kCancelled), self());
    }
    if (ledger_.Fail(ticket, absl::CancelledError("KV transfer: aborted here"))) known = true;
    if (!known) counters_.Add(&TransportCounters::ignored_calls);
  });
}

}  // namespace baton
