#include "common/transport/tcp/outgoing_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/push_plan.h"

namespace baton {
namespace {

constexpr double kFirstSecondsPerByte = 1.0 / 64e6;  // Before anything was measured.
constexpr double kProgressBytes = 2 << 20;  // What may be under way between two acknowledgements.
constexpr size_t kMaxStaged = 2;            // Data frames behind the one that is written.

std::string NameOfPeer(const OutgoingLink::Options& options) {
  return absl::StrCat(absl::Hex(options.receiver, absl::kZeroPad16), " rank ",
                      options.receiver_place.rank);
}

TicketId TicketOf(const std::variant<PushArgs, FinishArgs>& work) {
  return std::visit([](const auto& args) { return args.ticket; }, work);
}

}  // namespace

OutgoingLink::OutgoingLink(std::unique_ptr<ByteStream> bytes, const Options& options, Time now)
    : options_(options),
      stream_(std::move(bytes), this, options_.stream),
      handshake_deadline_(now + options.handshake_timeout),
      now_(now),
      seconds_per_byte_(kFirstSecondsPerByte),
      last_progress_(now) {}

// At most max(1 s, 10 x expected) per acknowledgement; min_progress_timeout carries the scale, what
// was measured does not need it.
void OutgoingLink::Arm(Ticket* ticket) const {
  const double expected_s = 10 * kProgressBytes * seconds_per_byte_;
  const double seconds =
      std::min(std::max(expected_s, ToSeconds(options_.min_progress_timeout)), 3600.0);
  ticket->armed_at = now_;
  ticket->deadline =
      now_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// The mean is over time per byte, not bytes per time: one slow megabyte counts at once.
void OutgoingLink::NoteProgress(int64_t bytes) {
  const double seconds = ToSeconds(now_ - last_progress_);
  last_progress_ = now_;
  if (bytes < (64 << 10)) return;  // Too little to tell a rate from.
  seconds_per_byte_ += 0.2 * (seconds / static_cast<double>(bytes) - seconds_per_byte_);
}

void OutgoingLink::Start(StartArgs args) {
  const TicketId ticket = args.ticket;
  const bool same_key = args.key == options_.key;
  auto it = tickets_.emplace(ticket, Ticket{.args = std::move(args)}).first;
  if (!same_key) End(it, StatusOfAbort(AbortCode::kUnauthenticated), AbortCode::kNone);
}

void OutgoingLink::Announce(Tickets::iterator it, Work work) {
  Ticket& ticket = it->second;
  if (!ticket.outstanding() && state_ == State::kReady) {
    Arm(&ticket);
    if (work_.empty()) last_progress_ = now_;
  }
  ++ticket.queued;
  work_.push_back(std::move(work));
}

void OutgoingLink::Push(const PushArgs& args, Time now) {
  now_ = now;
  Announce(tickets_.find(args.ticket), args);
}

void OutgoingLink::Finish(FinishArgs args, Time now) {
  now_ = now;
  auto it = tickets_.find(args.ticket);
  Announce(it, std::move(args));
}

void OutgoingLink::Abort(TicketId ticket) {
  End(tickets_.find(ticket), absl::CancelledError("KV transfer: aborted here"),
      AbortCode::kCancelled);
}

void OutgoingLink::DropWork(TicketId ticket) {
  if (!work_.empty() && TicketOf(work_.front()) == ticket) {
    frames_.clear();
    next_frame_ = 0;
  }
  std::erase_if(work_, [&](const Work& work) { return TicketOf(work) == ticket; });
  std::erase_if(staged_, [&](const StagedFrame& frame) { return frame.header.ticket == ticket; });
  std::erase_if(lost_, [&](const FrameHeader& header) { return header.ticket == ticket; });
}

void OutgoingLink::End(Tickets::iterator it, absl::Status status, AbortCode tell) {
  const TicketId id = it->first;
  stream_.AbandonFrame(id);
  DropWork(id);
  TransferEvent event{.ticket = id,
                      .status = std::move(status),
                      .bytes = it->second.acked_bytes + it->second.carried_bytes};
  if (it->second.finish.has_value()) --num_late_;
  tickets_.erase(it);
  if (tell != AbortCode::kNone && state_ == State::kReady) {
    overflow_.Update(
        stream_.Queue({.header = {.type = FrameType::kAbort, .ticket = id, .code = tell}}));
  }
  options_.transport.sink(std::move(event));
}

absl::Status OutgoingLink::SendHello() {
  hello_ = {.sender = options_.transport.incarnation,
            .receiver = options_.receiver,
            .sender_place = options_.transport.place,
            .receiver_place = options_.receiver_place,
            .pool = ShapeOf(options_.transport)};
  ASSIGN_OR_RETURN(hello_.nonce, NewNonce());
  const auto body = EncodeHello(hello_);
  state_ = State::kChallenge;
  const uint64_t version = carrier() == nullptr ? 0 : carrier()->version();
  return stream_.Queue({.header = {.type = FrameType::kHello, .value = version},
                        .body = {body.begin(), body.end()}});
}

absl::StatusOr<PayloadPlan> OutgoingLink::OnHeader(const FrameHeader& header) {
  const bool expected = (state_ == State::kChallenge && header.type == FrameType::kChallenge) ||
                        (state_ == State::kAccepted && header.type == FrameType::kAccepted) ||
                        (state_ == State::kReady &&
                         (header.type == FrameType::kAck || header.type == FrameType::kVerified ||
                          (header.type == FrameType::kCarried && link_id_.has_value()))) ||
                        header.type == FrameType::kAbort;
  if (expected) return PayloadPlan{};
  options_.counters->Add(&TransportCounters::malformed);
  return absl::InvalidArgumentError("KV connection: an answer that does not belong here");
}

absl::Status OutgoingLink::OnFrame(const ReceivedFrame& frame) {
  const FrameHeader& header = frame.header;
  last_heard_ = now_;
  if (header.type == FrameType::kChallenge) return OnChallenge(frame);
  if (header.type == FrameType::kAck) return OnAck(header);
  if (header.type == FrameType::kCarried) return OnWord(frame);
  if (header.type == FrameType::kAccepted) {
    state_ = State::kReady;
    last_progress_ = now_;
    options_.counters->Add(&TransportCounters::authenticated_connections);
    for (auto& [id, ticket] : tickets_) {
      if (ticket.outstanding()) Arm(&ticket);
    }
    if (carrier() != nullptr) {
      link_id_ = carrier()->Open(this, {.name = NameOfPeer(options_), .version = peer_version_});
    }
    return absl::OkStatus();
  }
  if (header.type == FrameType::kAbort && header.ticket.empty()) {
    options_.counters->Add(&TransportCounters::failed_handshakes);
    return StatusOfAbort(header.code);
  }
  auto it = tickets_.find(header.ticket);
  if (it == tickets_.end()) return absl::OkStatus();
  if (header.type == FrameType::kAbort) {
    End(it, StatusOfAbort(header.code), AbortCode::kNone);
  } else if (it->second.final_sent) {
    it->second.acked_bytes = it->second.sent_bytes;
    End(it, absl::OkStatus(), AbortCode::kNone);
  } else {
    options_.counters->Add(&TransportCounters::malformed);
    return absl::InvalidArgumentError("KV connection: verified before the final frame");
  }
  return absl::OkStatus();
}

absl::Status OutgoingLink::OnChallenge(const ReceivedFrame& frame) {
  auto challenge = DecodeChallenge(frame.body);
  if (!frame.checksum_ok || frame.abandoned || !challenge.ok()) {
    options_.counters->Add(&TransportCounters::malformed);
    return absl::InvalidArgumentError("KV connection: malformed challenge");
  }
  if (!SameMac(challenge->proof, ReceiverProof(options_.key, hello_, *challenge))) {
    options_.counters->Add(&TransportCounters::failed_handshakes);
    return StatusOfAbort(AbortCode::kUnauthenticated);
  }
  receiver_pool_ = challenge->pool;
  peer_version_ = frame.header.value;
  const Mac proof = SenderProof(options_.key, hello_, *challenge);
  OutgoingFrame answer{.header = {.type = FrameType::kProof}};
  for (uint8_t byte : proof) answer.body.push_back(static_cast<std::byte>(byte));
  state_ = State::kAccepted;
  return stream_.Queue(std::move(answer));
}

absl::Status OutgoingLink::OnAck(const FrameHeader& header) {
  auto acked = tickets_.find(header.ticket);
  if (acked != tickets_.end()) {
    Ticket& ticket = acked->second;
    if (header.value > static_cast<uint64_t>(ticket.sent_bytes)) {
      options_.counters->Add(&TransportCounters::malformed);
      return absl::InvalidArgumentError("KV connection: more acknowledged than sent");
    }
    const int64_t bytes = static_cast<int64_t>(header.value);
    const bool is_news = bytes > ticket.acked_bytes;
    if (is_news) {
      NoteProgress(bytes - ticket.acked_bytes);
      ticket.acked_bytes = bytes;
    }
    // Without news: the receiver has all of this rank's and waits for other ranks', which have
    // deadlines of their own.
    if (is_news || ticket.final_sent) Arm(&ticket);
  }
  ArmWaiting();
  return absl::OkStatus();
}

void OutgoingLink::ArmWaiting() {
  for (auto& [id, ticket] : tickets_) {
    if (ticket.queued > 0 || ticket.carried > 0) Arm(&ticket);
  }
}

bool OutgoingLink::PlanFront() {
  while (frames_.empty()) {
    const auto* push = work_.empty() ? nullptr : std::get_if<PushArgs>(&work_.front());
    if (push == nullptr) return false;
    auto it = tickets_.find(push->ticket);
    auto frames = PlanPush(options_.transport, it->second.args, *push, receiver_pool_.block_size);
    if (!frames.ok()) {
      End(it, frames.status(), AbortCode::kCancelled);
      continue;
    }
    frames_ = *std::move(frames);
    if (frames_.empty()) {
      --it->second.queued;
      work_.pop_front();
    }
  }
  return true;
}

std::optional<OutgoingFrame> OutgoingLink::NextFrame() {
  if (state_ != State::kReady) return std::nullopt;
  if (num_late_ > 0) {
    if (auto frame = LateFinal(); frame.has_value()) return frame;
  }
  bool has_room = true;
  while (has_room && !lost_.empty()) has_room = StageLost();
  while (has_room && (PlanFront() || !work_.empty())) {
    if (frames_.empty()) {
      const auto it = tickets_.find(TicketOf(work_.front()));
      if (it->second.carried == 0 && !staged_.empty()) break;
      if (auto frame = FinishFront(); frame.has_value()) return frame;
    } else if (Carries()) {
      break;
    } else if (options_.transport.stager == nullptr) {
      return NextDataFrame();
    } else {
      has_room = StageNext();
    }
  }
  return NextStaged();
}

bool OutgoingLink::TakeRange() {
  if (++next_frame_ < frames_.size()) return false;
  work_.pop_front();
  frames_.clear();
  next_frame_ = 0;
  return true;
}

std::optional<OutgoingFrame> OutgoingLink::NextDataFrame() {
  Ticket& ticket = tickets_.find(TicketOf(work_.front()))->second;
  const FrameRange range = frames_[next_frame_];
  OutgoingFrame frame{
      .header = {.type = FrameType::kData, .ticket = ticket.args.ticket, .range = range},
      .memory = FrameMemory(*options_.transport.cache, range, ticket.args.blocks,
                            ShapeOf(options_.transport).heads.first)};
  for (const iovec& part : frame.memory) ticket.sent_bytes += static_cast<int64_t>(part.iov_len);
  if (TakeRange()) --ticket.queued;
  return frame;
}

std::vector<PoolPiece> OutgoingLink::PiecesOf(const StartArgs& args,
                                              const FrameRange& range) const {
  return FramePieces(*options_.transport.cache, range, args.blocks,
                     ShapeOf(options_.transport).heads.first);
}

bool OutgoingLink::Stage(StagedFrame frame) {
  const StartArgs& args = tickets_.find(frame.header.ticket)->second.args;
  frame.gathered = options_.transport.stager->Gather({args.ticket, /*receiver=*/false},
                                                     PiecesOf(args, frame.header.range));
  if (frame.gathered == nullptr) {
    wants_slot_ = !got_slot_;
    return false;
  }
  got_slot_ = true;
  staged_.push_back(std::move(frame));
  return true;
}

bool OutgoingLink::StageNext() {
  if (staged_.size() >= kMaxStaged) return false;
  const TicketId ticket = TicketOf(work_.front());
  if (!Stage({.header = {.type = FrameType::kData,
                         .ticket = ticket,
                         .range = frames_[next_frame_]}})) {
    return false;
  }
  staged_.back().last = TakeRange();
  return true;
}

bool OutgoingLink::StageLost() {
  if (staged_.size() >= kMaxStaged) return false;
  if (!Stage({.header = lost_.front(), .was_carried = true})) return false;
  lost_.pop_front();
  return true;
}

std::optional<OutgoingFrame> OutgoingLink::NextStaged() {
  if (staged_.empty() || !staged_.front().gathered->done) return std::nullopt;
  StagedFrame staged = std::move(staged_.front());
  staged_.pop_front();
  Ticket& ticket = tickets_.find(staged.header.ticket)->second;
  ticket.sent_bytes += static_cast<int64_t>(staged.gathered->bytes.size());
  if (staged.last) --ticket.queued;
  if (staged.was_carried) --ticket.carried;
  return OutgoingFrame{.header = staged.header, .body = std::move(staged.gathered->bytes)};
}

std::optional<OutgoingFrame> OutgoingLink::FinishFront() {
  FinishArgs args = std::get<FinishArgs>(std::move(work_.front()));
  work_.pop_front();
  Ticket& ticket = tickets_.find(args.ticket)->second;
  if (ticket.carried == 0) return FinalFrame(args);
  ticket.finish = std::move(args);
  ++num_late_;
  return std::nullopt;
}

std::optional<OutgoingFrame> OutgoingLink::LateFinal() {
  for (auto& [id, ticket] : tickets_) {
    const bool is_staged = std::any_of(staged_.begin(), staged_.end(), [&](const auto& frame) {
      return frame.header.ticket == id;
    });
    if (!ticket.finish.has_value() || ticket.carried > 0 || is_staged) continue;
    const FinishArgs args = *std::exchange(ticket.finish, std::nullopt);
    --num_late_;
    return FinalFrame(args);
  }
  return std::nullopt;
}

std::optional<OutgoingFrame> OutgoingLink::FinalFrame(const FinishArgs& args) {
  auto it = tickets_.find(args.ticket);
  auto body = EncodeFinal({args.digests, it->second.args.num_tokens, args.first});
  if (!body.ok()) {
    End(it, body.status(), AbortCode::kCancelled);
    return std::nullopt;
  }
  it->second.final_sent = true;
  --it->second.queued;
  return OutgoingFrame{.header = {.type = FrameType::kFinal, .ticket = args.ticket},
                       .body = *std::move(body)};
}

absl::Status OutgoingLink::OnReady(bool readable, bool writable, Time now) {
  now_ = now;
  wants_slot_ = got_slot_ = false;
  if (state_ == State::kConnecting) {
    if (!readable && !writable) return absl::OkStatus();
    RETURN_IF_ERROR(stream_.bytes().ConnectResult());
    RETURN_IF_ERROR(SendHello());
  }
  if (readable) RETURN_IF_ERROR(stream_.Read());
  CarryFrames();
  RETURN_IF_ERROR(overflow_);
  if (writable || !stream_.wants_write()) RETURN_IF_ERROR(stream_.Write());
  return overflow_;
}

Time OutgoingLink::NextDeadline() const {
  Time next = state_ == State::kReady ? kNever : handshake_deadline_;
  for (const auto& [id, ticket] : tickets_) {
    if (ticket.outstanding()) next = std::min(next, ticket.deadline);
  }
  return next;
}

absl::Status OutgoingLink::OnTimer(Time now) {
  now_ = now;
  if (state_ != State::kReady && now >= handshake_deadline_) {
    options_.counters->Add(&TransportCounters::failed_handshakes);
    return absl::UnavailableError("KV connection: no handshake in time");
  }
  // When the socket takes nothing or the receiver is silent for all, only a new connection helps;
  // otherwise it is this ticket's matter alone.
  bool stalled = false;
  std::vector<TicketId> expired;
  for (const auto& [id, ticket] : tickets_) {
    if (!ticket.outstanding() || now < ticket.deadline) continue;
    expired.push_back(id);
    stalled |= stream_.wants_write() || last_heard_ <= ticket.armed_at;
  }
  for (TicketId id : expired) {
    End(tickets_.find(id), StatusOfAbort(AbortCode::kDeadline), AbortCode::kDeadline);
  }
  if (stalled) return absl::DeadlineExceededError("KV connection: stalled");
  return overflow_;
}

void OutgoingLink::OnClosed(const absl::Status& status) {
  const bool cancelled = absl::IsCancelled(status);
  const bool known = cancelled || absl::IsUnauthenticated(status);
  const absl::Status ended = known ? status
                                   : absl::UnavailableError("KV transfer: connection lost: " +
                                                            std::string(status.message()));
  if (link_id_.has_value()) carrier()->Close(*std::exchange(link_id_, std::nullopt));
  while (!tickets_.empty()) End(tickets_.begin(), ended, AbortCode::kNone);
}

}  // namespace baton
