#include "common/transport/receive_ledger.h"

#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/fail_point.h"

namespace baton {

ReceiveLedger::ReceiveLedger(const TransportOptions& options, CounterBoard* counters,
                             KvTransport::EventSink sink)
    : cache_(*options.cache),
      epochs_(*options.epochs),
      first_head_(options.first_head),
      staged_(options.stager != nullptr),
      counters_(counters),
      sink_(std::move(sink)) {}

absl::Status ReceiveLedger::CheckArgs(const ExpectArgs& args) const {
  if (args.ticket.empty() || args.sender == 0) {
    return absl::InvalidArgumentError("Expect without a ticket or a sender");
  }
  const int64_t capacity = static_cast<int64_t>(args.blocks.size()) * cache_.layout().block_size;
  if (args.first_token < 0 || args.first_token > args.num_tokens || args.num_tokens > capacity) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Expect of tokens [%d, %d) in %d blocks of %d tokens", args.first_token,
                        args.num_tokens, args.blocks.size(), cache_.layout().block_size));
  }
  const size_t first_block = args.first_token / cache_.layout().block_size;
  for (const BlockRef& ref : std::span(args.blocks).subspan(first_block)) {
    if (ref.block < 0 || ref.block >= cache_.num_blocks()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("Expect with block %d of a pool of %d", ref.block, cache_.num_blocks()));
    }
  }
  return absl::OkStatus();
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
  std::vector<BlockId> blocks;
  blocks.reserve(args.blocks.size());
  for (const BlockRef& ref : args.blocks) blocks.push_back(ref.block);
  Coverage coverage(cache_.layout(), {args.first_token, args.num_tokens - args.first_token},
                    first_head_);
  const TicketId id = args.ticket;
  tickets_.emplace(id, Ticket{std::move(args), std::move(blocks), std::move(coverage)});
}

AbortCode ReceiveLedger::Judge(const Ticket& ticket, const FrameHeader& header) const {
  const FrameRange& range = header.range;
  const KvLayout& layout = cache_.layout();
  if (range.layer >= NumLayers(layout)) return AbortCode::kOutOfRange;
  const int32_t pool_heads = GroupOfLayer(layout, range.layer).num_kv_heads;
  if (range.first_head < first_head_ ||
      int64_t{range.first_head} + range.num_heads > int64_t{first_head_} + pool_heads ||
      range.first_token < ticket.args.first_token ||
      int64_t{range.first_token} + range.num_tokens > ticket.args.num_tokens) {
    return AbortCode::kOutOfRange;
  }
  const int64_t bytes = HeadTokenBytes(layout, range.layer, range.plane) * range.num_tokens;
  if (bytes * range.num_heads != int64_t{header.payload_bytes}) return AbortCode::kOutOfRange;
  const int32_t last = (range.first_token + range.num_tokens - 1) / layout.block_size;
  for (int32_t i = range.first_token / layout.block_size; i <= last; ++i) {
    const BlockRef& ref = ticket.args.blocks[i];
    if (epochs_[ref.block].load(std::memory_order_acquire) != ref.epoch) {
      return AbortCode::kStaleEpoch;
    }
  }
  if (ticket.coverage.Check(range) == Coverage::Overlap::kPartial) return AbortCode::kOverlap;
  return AbortCode::kNone;
}

ReceiveLedger::Admission ReceiveLedger::Admit(const FrameHeader& header, Incarnation sender) {
  auto it = tickets_.find(header.ticket);
  AbortCode code = AbortCode::kUnknownTicket;
  if (it != tickets_.end()) {
    Ticket& ticket = it->second;
    code = ticket.args.sender != sender ? AbortCode::kWrongSender : Judge(ticket, header);
    if (code == AbortCode::kNone) {
      if (ticket.coverage.Check(header.range) == Coverage::Overlap::kWhole) {
        counters_->Add(&TransportCounters::duplicate_ranges);
        ticket.duplicate_bytes += header.payload_bytes;
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

void ReceiveLedger::Commit(const FrameHeader& header) {
  auto it = tickets_.find(header.ticket);
  if (it == tickets_.end()) return;
  it->second.coverage.Add(header.range);
  it->second.bytes += header.payload_bytes;
  counters_->Add(&TransportCounters::frames_accepted);
  counters_->Add(&TransportCounters::bytes_accepted, header.payload_bytes);
  BATON_FAIL_POINT("decode.transferring");
}

AbortCode ReceiveLedger::Finish(TicketId id, Incarnation sender, const FinalBody& body) {
  auto it = tickets_.find(id);
  AbortCode code = AbortCode::kNone;
  if (it == tickets_.end()) {
    code = AbortCode::kUnknownTicket;
  } else if (it->second.args.sender != sender) {
    code = AbortCode::kWrongSender;
  } else if (body.digests != it->second.args.digests ||
             body.num_tokens != it->second.args.num_tokens) {
    code = AbortCode::kDigestMismatch;
  } else if (!it->second.coverage.Complete()) {
    code = AbortCode::kIncomplete;
  } else {
    End(it, absl::OkStatus(), body.first);
    return code;
  }
  counters_->AddRefused(code);
  if (code != AbortCode::kUnknownTicket && code != AbortCode::kWrongSender) {
    End(it, StatusOfAbort(code));
  }
  return code;
}

bool ReceiveLedger::Fail(TicketId id, const absl::Status& status, Incarnation sender) {
  auto it = tickets_.find(id);
  if (it == tickets_.end() || (sender != 0 && it->second.args.sender != sender)) return false;
  End(it, status);
  return true;
}

void ReceiveLedger::SenderLost(Incarnation sender, const absl::Status& status) {
  std::vector<TicketId> lost;
  for (const auto& [id, ticket] : tickets_) {
    if (ticket.begun && ticket.args.sender == sender) lost.push_back(id);
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

int64_t ReceiveLedger::AcceptedBytes(TicketId id) const {
  auto it = tickets_.find(id);
  return it == tickets_.end() ? 0 : it->second.bytes + it->second.duplicate_bytes;
}

void ReceiveLedger::End(Tickets::iterator it, absl::Status status, TokenOutput first) {
  TransferEvent event{.kind = TransferEvent::Kind::kEnded,
                      .ticket = it->first,
                      .receiver = true,
                      .status = std::move(status),
                      .first = std::move(first),
                      .bytes = it->second.bytes};
  tickets_.erase(it);
  sink_(std::move(event));
}

}  // namespace baton
