#include "tests/transport/late_copies.h"

#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace baton {

absl::Status LateCopies::FailIfTold() {
  if (error_.ok() || skip_-- > 0) return absl::OkStatus();
  return std::exchange(error_, absl::OkStatus());
}

absl::StatusOr<Buffer> LateCopies::Allocate(int64_t bytes, MemoryKind kind) {
  RETURN_IF_ERROR(FailIfTold());
  BATON_CHECK(kind == MemoryKind::kPinned);
  ASSIGN_OR_RETURN(Buffer buffer, AllocateHost(bytes));
  std::memset(buffer.data(), 0xEE, static_cast<size_t>(bytes));
  return buffer;
}

absl::Status LateCopies::CopyPieces(Lane lane, std::span<const CopyPiece> pieces) {
  RETURN_IF_ERROR(FailIfTold());
  BATON_CHECK(lane == Lane::kTransfer);
  queued_.push_back(pieces);
  ++enqueued_;
  ++copies_;
  return absl::OkStatus();
}

absl::StatusOr<Mark> LateCopies::MarkNow(Lane lane) {
  RETURN_IF_ERROR(FailIfTold());
  return Mark{lane, enqueued_};
}

absl::StatusOr<bool> LateCopies::IsDone(Mark mark) {
  RETURN_IF_ERROR(FailIfTold());
  ++questions_;
  if (!hangs_ && !queued_.empty() && --delay_ <= 0) {
    for (const CopyPiece& piece : queued_.front()) {
      BATON_CHECK(piece.bytes % 8 == 0 && reinterpret_cast<uintptr_t>(piece.from) % 8 == 0 &&
                  reinterpret_cast<uintptr_t>(piece.to) % 8 == 0);
      std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
    }
    queued_.pop_front();
    ++done_;
    delay_ = static_cast<int>(random_.Below(4));
  }
  return mark.number <= done_;
}

}  // namespace baton
