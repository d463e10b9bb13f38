// The part of OutgoingLink that sends frames beside the connection.

#include <algorithm>
#include <utility>

#include "common/transport/tcp/outgoing_link.h"

namespace baton {

bool OutgoingLink::Carries() const {
  return link_id_.has_value() && carrier()->RoomFor(*link_id_) != PayloadCarrier::Room::kNone;
}

void OutgoingLink::CarryFrames() {
  while (link_id_.has_value() && carrier()->RoomFor(*link_id_) == PayloadCarrier::Room::kFree) {
    std::vector<CarriedFrame> frames = TakeBatch();
    if (frames.empty()) return;
    carrier()->Carry(*link_id_, std::move(frames));
  }
}

// Heads of a block of either pool are apart, and a range may begin and end within blocks.
size_t OutgoingLink::MostPieces(const CarriedFrame& frame) const {
  const FrameRange& range = frame.header.range;
  const size_t theirs = static_cast<size_t>(range.num_heads) *
                        (range.num_tokens / receiver_pool_.block_size + 2);
  return std::max(frame.pieces.size(), theirs);
}

std::vector<CarriedFrame> OutgoingLink::TakeBatch() {
  const PayloadCarrier::Limits limits = carrier()->LimitsFor(*link_id_);
  PayloadCarrier::Limits taken;
  std::vector<CarriedFrame> frames;
  while (frames.size() < limits.frames && PlanFront()) {
    Ticket& ticket = tickets_.find(std::get<PushArgs>(work_.front()).ticket)->second;
    const FrameRange range = frames_[next_frame_];
    CarriedFrame frame{.header = {.type = FrameType::kCarried,
                                  .ticket = ticket.args.ticket,
                                  .range = range},
                       .pieces = PiecesOf(ticket.args, range)};
    for (const PoolPiece& piece : frame.pieces) {
      frame.header.payload_bytes += static_cast<uint32_t>(piece.bytes);
    }
    taken.bytes += frame.header.payload_bytes;
    taken.pieces += MostPieces(frame);
    const bool fits = taken.bytes <= limits.bytes && taken.pieces <= limits.pieces;
    if (!fits && !frames.empty()) break;
    ++ticket.carried;
    if (TakeRange()) --ticket.queued;
    if (!fits) {  // It never will.
      OnLost({&frame, 1});
      taken = {};
    } else {
      frames.push_back(std::move(frame));
    }
  }
  return frames;
}

absl::Status OutgoingLink::OnWord(const ReceivedFrame& frame) {
  absl::Status status = absl::InvalidArgumentError("KV connection: a spoiled word");
  if (frame.checksum_ok && !frame.abandoned) status = carrier()->OnWord(*link_id_, frame.body);
  if (!status.ok()) options_.counters->Add(&TransportCounters::malformed);
  ArmWaiting();
  return status;
}

void OutgoingLink::Say(std::vector<std::byte> word) {
  overflow_.Update(
      stream_.Queue({.header = {.type = FrameType::kCarried}, .body = std::move(word)}));
}

void OutgoingLink::OnCarried(std::span<const CarriedFrame> frames) {
  for (const CarriedFrame& frame : frames) {
    options_.counters->Add(&TransportCounters::nccl_frames_sent);
    options_.counters->Add(&TransportCounters::nccl_bytes_sent, frame.header.payload_bytes);
    const auto it = tickets_.find(frame.header.ticket);
    if (it == tickets_.end()) continue;
    --it->second.carried;
    it->second.carried_bytes += frame.header.payload_bytes;
  }
}

void OutgoingLink::OnLost(std::span<const CarriedFrame> frames) {
  for (const CarriedFrame& frame : frames) {
    const auto it = tickets_.find(frame.header.ticket);
    if (it == tickets_.end()) continue;
    Arm(&it->second);
    lost_.push_back({.type = FrameType::kData,
                     .ticket = frame.header.ticket,
                     .range = frame.header.range});
  }
}

}  // namespace baton
