#include "common/transport/tcp/incoming_link.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/pair_key.h"

namespace baton {
namespace {

std::string NameOfPeer(const Hello& hello) {
  return absl::StrCat(absl::Hex(hello.sender, absl::kZeroPad16), " rank ",
                      hello.sender_place.rank);
}

}  // namespace

IncomingLink::IncomingLink(std::unique_ptr<ByteStream> bytes, const Options& options)
    : options_(options), stream_(std::move(bytes), this, options_.stream) {}

absl::Status IncomingLink::Malformed(std::string_view what) {
  options_.counters->Add(&TransportCounters::malformed);
  return absl::InvalidArgumentError("KV connection: " + std::string(what));
}

absl::StatusOr<PayloadPlan> IncomingLink::OnHeader(const FrameHeader& header) {
  const bool expected = (state_ == State::kHello && header.type == FrameType::kHello) ||
                        (state_ == State::kProof && header.type == FrameType::kProof) ||
                        (state_ == State::kReady &&
                         (header.type == FrameType::kData || header.type == FrameType::kFinal ||
                          header.type == FrameType::kAbort ||
                          (header.type == FrameType::kCarried && link_id_.has_value())));
  if (!expected) return Malformed("a frame that does not belong here");
  if (options_.ledger->SenderOf(header.ticket) == 0) options_.on_unknown_ticket();
  if (header.type != FrameType::kData) return PayloadPlan{};
  ReceiveLedger::Admission admission = Judge(header);
  if (admission.kind == ReceiveLedger::Admission::Kind::kDuplicate) {
    unacked_.push_back(header.ticket);
  }
  if (admission.kind != ReceiveLedger::Admission::Kind::kWrite) {
    return PayloadPlan{PayloadPlan::Kind::kDiscard, {}};
  }
  if (options_.transport->stager != nullptr) {
    pieces_ = std::move(admission.pieces);
    return PayloadPlan{};
  }
  return PayloadPlan{PayloadPlan::Kind::kMemory, std::move(admission.memory)};
}

ReceiveLedger::Admission IncomingLink::Judge(const FrameHeader& header) {
  judged_ = header.ticket;
  ReceiveLedger::Admission admission = options_.ledger->Admit(header, sender());
  judged_ = {};
  if (admission.kind != ReceiveLedger::Admission::Kind::kRefused) {
    open_.insert(header.ticket);
  } else if (header.ticket != last_refused_) {
    last_refused_ = header.ticket;
    SendAbort(header.ticket, admission.code);
  }
  return admission;
}

absl::Status IncomingLink::OnFrame(const ReceivedFrame& frame) {
  switch (frame.header.type) {
    case FrameType::kHello:
      return OnHello(frame);
    case FrameType::kProof:
      return OnProof(frame);
    case FrameType::kData:
      return OnData(frame);
    case FrameType::kFinal:
      return OnFinal(frame);
    case FrameType::kCarried:
      return OnWord(frame);
    default:  // kAbort; OnHeader lets nothing else through.
      judged_ = frame.header.ticket;
      options_.ledger->Fail(judged_, StatusOfAbort(frame.header.code), sender());
      judged_ = {};
      return absl::OkStatus();
  }
}

// The last word: what comes behind it is not read. It fits into the socket of any peer that reads.
absl::Status IncomingLink::RefuseHandshake(AbortCode code) {
  options_.counters->Add(&TransportCounters::failed_handshakes);
  RETURN_IF_ERROR(stream_.Queue({.header = {.type = FrameType::kAbort, .code = code}}));
  RETURN_IF_ERROR(stream_.Write());
  return absl::UnauthenticatedError("KV connection: handshake refused");
}

absl::Status IncomingLink::OnHello(const ReceivedFrame& frame) {
  if (!frame.checksum_ok || frame.abandoned) return Malformed("hello checksum mismatch");
  auto hello = DecodeHello(frame.body);
  if (!hello.ok()) return Malformed(std::string(hello.status().message()));
  hello_ = *hello;
  peer_version_ = frame.header.value;
  if (hello_.receiver != options_.transport->incarnation ||
      hello_.receiver_place != options_.transport->place) {
    return RefuseHandshake(AbortCode::kWrongReceiver);
  }
  if (!CanHold(hello_.sender_place, KvHeads(*options_.transport)) ||
      hello_.pool.heads != HeadsAt(*options_.transport, hello_.sender_place)) {
    return RefuseHandshake(AbortCode::kProtocol);
  }
  ASSIGN_OR_RETURN(challenge_.nonce, NewNonce());
  challenge_.pool = ShapeOf(*options_.transport);
  const PairKey key = DerivePairKey(options_.transport->secret, hello_.sender, hello_.receiver);
  challenge_.proof = ReceiverProof(key, hello_, challenge_);
  const auto body = EncodeChallenge(challenge_);
  state_ = State::kProof;
  const uint64_t version = carrier() == nullptr ? 0 : carrier()->version();
  return stream_.Queue({.header = {.type = FrameType::kChallenge, .value = version},
                        .body = {body.begin(), body.end()}});
}

absl::Status IncomingLink::OnProof(const ReceivedFrame& frame) {
  if (!frame.checksum_ok || frame.abandoned) return Malformed("proof checksum mismatch");
  ASSIGN_OR_RETURN(const Mac proof, DecodeProof(frame.body));
  const PairKey key = DerivePairKey(options_.transport->secret, hello_.sender, hello_.receiver);
  if (!SameMac(proof, SenderProof(key, hello_, challenge_))) {
    return RefuseHandshake(AbortCode::kUnauthenticated);
  }
  state_ = State::kReady;
  options_.counters->Add(&TransportCounters::authenticated_connections);
  options_.on_authenticated(this);
  RETURN_IF_ERROR(stream_.Queue({.header = {.type = FrameType::kAccepted}}));
  if (carrier() != nullptr) {
    link_id_ = carrier()->Open(this, {.name = NameOfPeer(hello_),
                                      .version = peer_version_,
                                      .receives = true});
  }
  return absl::OkStatus();
}

absl::Status IncomingLink::OnWord(const ReceivedFrame& frame) {
  if (!frame.checksum_ok || frame.abandoned) return Malformed("a spoiled word");
  absl::Status status = carrier()->OnWord(*link_id_, frame.body);
  if (!status.ok()) options_.counters->Add(&TransportCounters::malformed);
  return status;
}

void IncomingLink::Say(std::vector<std::byte> word) {
  overflow_.Update(
      stream_.Queue({.header = {.type = FrameType::kCarried}, .body = std::move(word)}));
}

std::optional<std::vector<PoolPiece>> IncomingLink::Admit(const FrameHeader& header) {
  ReceiveLedger::Admission admission = Judge(header);
  if (admission.kind != ReceiveLedger::Admission::Kind::kWrite) return std::nullopt;
  return std::move(admission.pieces);
}

void IncomingLink::Commit(const FrameHeader& header) {
  options_.ledger->Commit(header, sender());
}

void IncomingLink::OnSpoiled(const FrameHeader& header) {
  options_.counters->Add(&TransportCounters::nccl_checksum_failures);
  if (options_.ledger->SenderOf(header.ticket) == 0) return;
  overflow_.Update(FailTicket(header.ticket, AbortCode::kChecksum));
}

absl::Status IncomingLink::FailTicket(TicketId ticket, AbortCode code) {
  judged_ = ticket;
  options_.ledger->Fail(ticket, StatusOfAbort(code), sender());
  judged_ = {};
  last_refused_ = ticket;
  return stream_.Queue({.header = {.type = FrameType::kAbort, .ticket = ticket, .code = code}});
}

absl::Status IncomingLink::OnData(const ReceivedFrame& frame) {
  if (frame.discarded) return absl::OkStatus();
  const TicketId ticket = frame.header.ticket;
  if (frame.abandoned) {
    options_.counters->Add(&TransportCounters::abandoned_frames);
    return FailTicket(ticket, AbortCode::kCancelled);
  }
  if (!frame.checksum_ok) {
    options_.counters->Add(&TransportCounters::checksum_failures);
    return FailTicket(ticket, AbortCode::kChecksum);
  }
  if (options_.transport->stager == nullptr) {
    CommitData(frame.header);
  } else if (const StagedFrame staged{frame.header, frame.body}; !Launch(staged)) {
    waiting_ = staged;
    stream_.Pause();
  }
  return absl::OkStatus();
}

void IncomingLink::CommitData(const FrameHeader& header) {
  Commit(header);
  if (unacked_.empty() || unacked_.back() != header.ticket) unacked_.push_back(header.ticket);
}

bool IncomingLink::Launch(const StagedFrame& frame) {
  const BlockStager::Work work{frame.header.ticket, /*receiver=*/true};
  if (!options_.transport->stager->Scatter(work, pieces_, frame.body)) return false;
  CommitData(frame.header);
  return true;
}

// With the first free slot the stream goes on; at once if the frame's ticket ended meanwhile.
absl::Status IncomingLink::LaunchWaiting() {
  if (!stream_.paused() || (waiting_.has_value() && !Launch(*waiting_))) return absl::OkStatus();
  waiting_.reset();
  return stream_.Resume();
}

void IncomingLink::OnTicketEnded(TicketId ticket, bool verified) {
  stream_.DivertPayload(ticket);
  if (waiting_.has_value() && waiting_->header.ticket == ticket) waiting_.reset();
  const bool is_open = open_.erase(ticket) > 0;
  finished_.erase(ticket);
  if (verified && (is_open || ticket == judged_)) verdicts_.push_back(ticket);
  if (!verified && is_open && ticket != judged_) SendAbort(ticket, AbortCode::kCancelled);
}

absl::Status IncomingLink::OnFinal(const ReceivedFrame& frame) {
  const TicketId ticket = frame.header.ticket;
  if (frame.abandoned || !frame.checksum_ok) {
    options_.counters->Add(&TransportCounters::checksum_failures);
    return FailTicket(ticket, AbortCode::kChecksum);
  }
  auto body = DecodeFinal(frame.body);
  if (!body.ok()) {
    options_.counters->Add(&TransportCounters::malformed);
    return FailTicket(ticket, AbortCode::kProtocol);
  }
  judged_ = ticket;
  const AbortCode code = options_.ledger->Finish(ticket, sender(), *body);
  judged_ = {};
  if (code != AbortCode::kNone) {
    return stream_.Queue({.header = {.type = FrameType::kAbort, .ticket = ticket, .code = code}});
  }
  if (options_.ledger->SenderOf(ticket) == 0) return absl::OkStatus();
  open_.insert(ticket);
  if (finished_.empty()) next_reminder_ = now_ + options_.reminder_interval;
  finished_.insert(ticket);
  return absl::OkStatus();
}

bool IncomingLink::IsLanding(TicketId ticket) const {
  const BlockStager::Work work{ticket, /*receiver=*/true};
  const BlockStager* stager = options_.transport->stager;
  return (stager != nullptr && stager->Busy(work) > 0) ||
         (carrier() != nullptr && carrier()->Busy(work) > 0);
}

// The sender may give its KV up once it hears the verdict, so it does not before this process has
// all of it.
absl::Status IncomingLink::SendVerdicts() {
  const auto landed = std::partition(verdicts_.begin(), verdicts_.end(),
                                     [this](TicketId ticket) { return IsLanding(ticket); });
  for (auto it = landed; it != verdicts_.end(); ++it) {
    RETURN_IF_ERROR(stream_.Queue({.header = {.type = FrameType::kVerified, .ticket = *it}}));
  }
  verdicts_.erase(landed, verdicts_.end());
  return absl::OkStatus();
}

void IncomingLink::SendAbort(TicketId ticket, AbortCode code) {
  open_.erase(ticket);
  overflow_.Update(
      stream_.Queue({.header = {.type = FrameType::kAbort, .ticket = ticket, .code = code}}));
}

absl::Status IncomingLink::SendAcks() {
  std::sort(unacked_.begin(), unacked_.end());
  unacked_.erase(std::unique(unacked_.begin(), unacked_.end()), unacked_.end());
  for (TicketId ticket : unacked_) {
    if (options_.ledger->SenderOf(ticket) != hello_.sender) continue;
    const auto bytes = static_cast<uint64_t>(options_.ledger->AcceptedBytes(ticket, sender()));
    RETURN_IF_ERROR(
        stream_.Queue({.header = {.type = FrameType::kAck, .ticket = ticket, .value = bytes}}));
  }
  unacked_.clear();
  return absl::OkStatus();
}

absl::Status IncomingLink::OnReady(bool readable, bool writable, Time now) {
  now_ = now;
  RETURN_IF_ERROR(LaunchWaiting());
  if (readable) RETURN_IF_ERROR(stream_.Read());
  RETURN_IF_ERROR(SendVerdicts());
  RETURN_IF_ERROR(SendAcks());
  RETURN_IF_ERROR(overflow_);
  return writable || !stream_.wants_write() ? stream_.Write() : absl::OkStatus();
}

Time IncomingLink::NextDeadline() const {
  if (state_ != State::kReady) return options_.handshake_deadline;
  return finished_.empty() ? kNever : next_reminder_;
}

absl::Status IncomingLink::OnTimer(Time now) {
  if (now < NextDeadline()) return absl::OkStatus();
  if (state_ == State::kReady) {
    next_reminder_ = now + options_.reminder_interval;
    unacked_.insert(unacked_.end(), finished_.begin(), finished_.end());
    return absl::OkStatus();
  }
  options_.counters->Add(&TransportCounters::failed_handshakes);
  return absl::DeadlineExceededError("KV connection: no handshake in time");
}

void IncomingLink::Supersede(const absl::Status& status) {
  options_.ledger->SenderLost(sender(), status);
  superseded_ = true;
}

void IncomingLink::OnClosed(const absl::Status& status) {
  if (link_id_.has_value()) carrier()->Close(*std::exchange(link_id_, std::nullopt));
  if (state_ == State::kReady && !superseded_) {
    options_.ledger->SenderLost(
        sender(),
        absl::UnavailableError("KV transfer: connection lost: " + std::string(status.message())));
  }
}

}  // namespace baton
