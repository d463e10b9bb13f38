#include "common/model/device_memory.h"

#include <cstring>

#include "common/base/status.h"

namespace baton {

absl::StatusOr<Buffer> CopyToDevice(Device& device, std::span<const std::byte> bytes,
                                    Buffer* staged) {
  constexpr int64_t kUnit = 8;  // Of pieces.
  const int64_t size = (static_cast<int64_t>(bytes.size()) + kUnit - 1) / kUnit * kUnit;
  ASSIGN_OR_RETURN(Buffer to, device.Allocate(size, MemoryKind::kDevice));
  if (bytes.empty()) return to;
  if (device.info().unified) {
    std::memcpy(to.data(), bytes.data(), bytes.size());
    return to;
  }
  // The list of one piece, then what it copies.
  constexpr auto kHead = static_cast<int64_t>(sizeof(CopyPiece));
  Buffer own;
  if (staged == nullptr) staged = &own;
  if (staged->size_bytes() < kHead + size) {
    ASSIGN_OR_RETURN(*staged, device.Allocate(kHead + size, MemoryKind::kPinned));
  }
  std::memcpy(staged->data() + kHead, bytes.data(), bytes.size());
  auto* const piece = staged->array<CopyPiece>();
  *piece = {.from = staged->data() + kHead, .to = to.data(), .bytes = size};
  RETURN_IF_ERROR(device.CopyPieces(Lane::kCompute, {piece, 1}));
  ASSIGN_OR_RETURN(const Mark mark, device.MarkNow(Lane::kCompute));
  RETURN_IF_ERROR(Wait(device, mark));
  return to;
}

}  // namespace baton
