#include "common/transport/receive_ledger.h"

#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/fail_point.h"

namespace baton {
namespace {

std::vector<BlockId> IdsOf(const std::vector<BlockRef>& refs) {
  std::vector<BlockId> ids;
  ids.reserve(refs.size());
  for (const BlockRef& ref : refs) ids.push_back(ref.block);
  return ids;
}

}  // namespace

ReceiveLedger::ReceiveLedger(const TransportOptions& options, CounterBoard* counters,
                             KvTransport::EventSink sink)
    : cache_(*options.cache),
      epochs_(*options.epochs),
      place_(options.place),
      kv_heads_(KvHeads(options)),
      first_head_(ShapeOf(options).heads.first),
      staged_(options.stager != nullptr),
      counters_(counters),
      sink_(std::move(sink)) {}

absl::Status ReceiveLedger::CheckArgs(const ExpectArgs& args) const {
  if (args.ticket.empty() || args.sender == 0) {
    return absl::InvalidArgumentError("Expect without a ticket or a sender");
  }
  return CheckBlocks(cache_, "Expect", {args.first_token, args.num_tokens}, IdsOf(args.blocks));
}

void ReceiveLedger::Expect(ExpectArgs args) {
  if (tickets_.contains(args.ticket)) {
    counters_->Add(&TransportCounters::ignored_calls);
    return;
  }
  if (absl::Status status = CheckArgs(args); !status.ok()) {
    sink_({.ticket = args.ticket, .receiver = true, .status = std::move(status)});
    return;
  }
  std::vector<BlockId> blocks = IdsOf(args.blocks);
  Coverage coverage(cache_.layout(), args.first_token, args.num_tokens, first_head_);
  const TicketId id = args.ticket;
  tickets_.emplace(id, Ticket{std::move(args), std::move(blocks), std::move(coverage)});
}

uint32_t ReceiveLedger::Senders(int32_t sender_size) const {
  return CanHold(sender_size, kv_heads_) ? SendersTo(place_, sender_size, kv_heads_) : 0;
}

// A process has one number of ranks.
bool ReceiveLedger::IsSender(const Ticket& ticket, const Sender& sender) const {
  const RankPlace place = sender.place;
  return ticket.args.sender == sender.incarnation &&
         (ticket.sender_size == 0 || ticket.sender_size == place.size) &&
         (Senders(place.size) >> place.rank & 1) != 0;
}

void ReceiveLedger::Note(const Sender& sender, Ticket* ticket) {
  ticket->sender_size = sender.place.size;
  ticket->seen |= 1u << sender.place.rank;
}

AbortCode ReceiveLedger::Judge(const Ticket& ticket, const FrameHeader& header,
                               const Sender& sender) const {
  const FrameRange& range = header.range;
  const ExpectArgs& args = ticket.args;
  const KvLayout& layout = cache_.layout();
  if ((ticket.finals >> sender.place.rank & 1) != 0) return AbortCode::kOverlap;
  if (range.layer >= NumLayers(layout)) return AbortCode::kOutOfRange;
  const HeadRange heads = Sent(sender.place, place_, kv_heads_);
  if (range.first_head < heads.first ||
      int64_t{range.first_head} + range.num_heads > int64_t{heads.first} + heads.count ||
      range.first_token < FirstSent(layout, range.layer, args.first_token, args.num_tokens) ||
      int64_t{range.first_token} + range.num_tokens > args.num_tokens) {
    return AbortCode::kOutOfRange;
  }
  const int64_t bytes = HeadTokenBytes(layout, range.layer, range.plane) * range.num_tokens;
  if (bytes * range.num_heads != int64_t{header.payload_bytes}) return AbortCode::kOutOfRange;
  const int32_t last = (range.first_token + range.num_tokens - 1) / layout.block_size;
  const auto row = RowOf(layout, PlaceOf(layout, range.layer).group, args.blocks);
  for (int32_t i = range.first_token / layout.block_size; i <= last; ++i) {
    const BlockRef& ref = row[i];
    if (epochs_[ref.block].load(std::memory_order_acquire) != ref.epoch) {
      return AbortCode::kStaleEpoch;
    }
  }
  if (ticket.coverage.Check(range) == Coverage::Overlap::kPartial) return AbortCode::kOverlap;
  return AbortCode::kNone;
}

ReceiveLedger::Admission ReceiveLedger::Admit(const FrameHeader& header, const Sender& sender) {
  auto it = tickets_.find(header.ticket);
  AbortCode code = AbortCode::kUnknownTicket;
  if (it != tickets_.end()) {
    Ticket& ticket = it->second;
    code = IsSender(ticket, sender) ? Judge(ticket, header, sender) : AbortCode::kWrongSender;
    if (code == AbortCode::kNone) {
      Note(sender, &ticket);
      if (ticket.coverage.Check(header.range) == Coverage::Overlap::kWhole) {
        counters_->Add(&TransportCounters::duplicate_ranges);
        NoteAccepted(header, sender, &ticket);
        return {.kind = Admission::Kind::kDuplicate};
      }
      if (!ticket.begun) {
        ticket.begun = true;
        sink_({.kind = TransferEvent::Kind::kBegun, .ticket = header.ticket, .receiver = true});
      }
      if (staged_) {
        return {.kind = Admission::Kind::kWrite,
                .pieces = FramePieces(cache_, header.range, ticket.blocks, first_head_)};
      }
      return {.kind = Admission::Kind::kWrite,
              .memory = FrameMemory(cache_, header.range, ticket.blocks, first_head_)};
    }
  }
  counters_->AddRefused(code);
  if (code != AbortCode::kUnknownTicket && code != AbortCode::kWrongSender) {
    End(it, StatusOfAbort(code));
  }
  return {.kind = Admission::Kind::kRefused, .code = code};
}

// What goes beside the connection is acknowledged beside it.
void ReceiveLedger::NoteAccepted(const FrameHeader& header, const Sender& sender, Ticket* ticket) {
  if (header.type == FrameType::kCarried) return;
  ticket->accepted[sender.place.rank] += header.payload_bytes;
}

void ReceiveLedger::Commit(const FrameHeader& header, const Sender& sender) {
  auto it = tickets_.find(header.ticket);
  if (it == tickets_.end()) return;
  BATON_CHECK(it->second.begun && IsSender(it->second, sender));  // It was admitted.
  it->second.coverage.Add(header.range);
  it->second.bytes += header.payload_bytes;
  NoteAccepted(header, sender, &it->second);
  const bool is_carried = header.type == FrameType::kCarried;
  using C = TransportCounters;
  counters_->Add(is_carried ? &C::nccl_frames_accepted : &C::frames_accepted);
  counters_->Add(is_carried ? &C::nccl_bytes_accepted : &C::bytes_accepted, header.payload_bytes);
  BATON_FAIL_POINT("decode.transferring");
}

AbortCode ReceiveLedger::JudgeFinal(const Ticket& ticket, const Sender& sender,
                                    const FinalBody& body) const {
  if ((ticket.finals >> sender.place.rank & 1) != 0) return AbortCode::kOverlap;
  if (body.digests != ticket.args.digests || body.num_tokens != ticket.args.num_tokens ||
      (ticket.finals != 0 && body.first != ticket.first)) {
    return AbortCode::kDigestMismatch;
  }
  const uint32_t finals = ticket.finals | 1u << sender.place.rank;
  const bool last = finals == Senders(sender.place.size);
  return last && !ticket.coverage.Complete() ? AbortCode::kIncomplete : AbortCode::kNone;
}

AbortCode ReceiveLedger::Finish(TicketId id, const Sender& sender, const FinalBody& body) {
  auto it = tickets_.find(id);
  AbortCode code = AbortCode::kUnknownTicket;
  if (it != tickets_.end()) {
    Ticket& ticket = it->second;
    code = IsSender(ticket, sender) ? JudgeFinal(ticket, sender, body) : AbortCode::kWrongSender;
    if (code == AbortCode::kNone) {
      Note(sender, &ticket);
      ticket.finals |= 1u << sender.place.rank;
      ticket.first = body.first;
      if (ticket.finals == Senders(sender.place.size)) End(it, absl::OkStatus(), body.first);
      return code;
    }
  }
  counters_->AddRefused(code);
  if (code != AbortCode::kUnknownTicket && code != AbortCode::kWrongSender) {
    End(it, StatusOfAbort(code));
  }
  return code;
}

bool ReceiveLedger::Fail(TicketId id, const absl::Status& status) {
  auto it = tickets_.find(id);
  if (it == tickets_.end()) return false;
  End(it, status);
  return true;
}

bool ReceiveLedger::Fail(TicketId id, const absl::Status& status, const Sender& sender) {
  auto it = tickets_.find(id);
  return it != tickets_.end() && IsSender(it->second, sender) && Fail(id, status);
}

void ReceiveLedger::SenderLost(const Sender& sender, const absl::Status& status) {
  std::vector<TicketId> lost;
  for (const auto& [id, ticket] : tickets_) {
    if (IsSender(ticket, sender) && (ticket.seen >> sender.place.rank & 1) != 0) lost.push_back(id);
  }
  for (TicketId id : lost) Fail(id, status);
}

void ReceiveLedger::EndAll(const absl::Status& status) {
  while (!tickets_.empty()) End(tickets_.begin(), status);
}

Incarnation ReceiveLedger::SenderOf(TicketId id) const {
  auto it = tickets_.find(id);
  return it == tickets_.end() ? 0 : it->second.args.sender;
}

int64_t ReceiveLedger::AcceptedBytes(TicketId id, const Sender& sender) const {
  auto it = tickets_.find(id);
  return it == tickets_.end() ? 0 : it->second.accepted[sender.place.rank];
}

void ReceiveLedger::End(Tickets::iterator it, absl::Status status, TokenOutput first) {
  const Ticket& ticket = it->second;
  BATON_CHECK(!status.ok() ||
              (ticket.coverage.Complete() && ticket.finals == Senders(ticket.sender_size)));
  TransferEvent event{.kind = TransferEvent::Kind::kEnded,
                      .ticket = it->first,
                      .receiver = true,
                      .status = std::move(status),
                      .first = std::move(first),
                      .bytes = ticket.bytes};
  tickets_.erase(it);
  sink_(std::move(event));
}

}  // namespace baton
