#include "common/transport/device_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/transport/wire.h"

namespace baton {
namespace {

constexpr int64_t kUnit = 8;  // Of CopyPieces.

// Of any frame: each head's tokens lie in whole blocks but for the first and the last.
int64_t MaxPiecesOfPlane(const KvLayout& layout, int64_t head_token_bytes, int32_t heads) {
  const int64_t tokens = kMaxDataPayloadBytes / head_token_bytes;  // Of all heads.
  return std::min<int64_t>(tokens, tokens / layout.block_size + 2 * int64_t{heads});
}

absl::StatusOr<int64_t> MaxPieces(const KvLayout& layout) {
  int64_t most = 1;
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const int64_t bytes = HeadTokenBytes(layout, layer, plane);
      if (bytes % kUnit != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("a head of a token takes ", bytes,
                         " bytes in the KV pool; a device copies multiples of ", kUnit));
      }
      if (bytes == 0) continue;
      const int32_t heads = GroupOfLayer(layout, layer).num_kv_heads;
      most = std::max(most, MaxPiecesOfPlane(layout, bytes, heads));
    }
  }
  return most;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStager>> DeviceStager::Create(Device& device,
                                                                   const KvCache& cache,
                                                                   OnLost on_lost,
                                                                   std::function<Time()> now) {
  ASSIGN_OR_RETURN(const int64_t max_pieces, MaxPieces(cache.layout()));
  std::unique_ptr<DeviceStager> stager(
      new DeviceStager(device, cache, std::move(on_lost), std::move(now), max_pieces));
  ASSIGN_OR_RETURN(stager->memory_,
                   device.Allocate(kSlots * stager->slot_bytes_, MemoryKind::kPinned));
  return stager;
}

DeviceStager::DeviceStager(Device& device, const KvCache& cache, OnLost on_lost,
                           std::function<Time()> now, int64_t max_pieces)
    : device_(device),
      pool_(cache.base()),
      on_lost_(std::move(on_lost)),
      now_(std::move(now)),
      max_pieces_(max_pieces),
      slot_bytes_(kMaxDataPayloadBytes +
                  max_pieces * static_cast<int64_t>(sizeof(CopyPiece))),
      waited_(now_()) {
  for (int slot = 0; slot < kSlots; ++slot) free_.push_back(slot);
}

void DeviceStager::CheckDevice(const absl::Status& status) const {
  if (status.ok()) return;
  on_lost_(status);
  BATON_CHECK(false);  // It does not return.
}

std::span<const CopyPiece> DeviceStager::ListPieces(int slot, std::span<const PoolPiece> pieces,
                                                    bool gather) const {
  BATON_CHECK(static_cast<int64_t>(pieces.size()) <= max_pieces_);
  auto* list = memory_.array<CopyPiece>(slot * slot_bytes_ + kMaxDataPayloadBytes);
  std::byte* payload = PayloadOf(slot);
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::byte* pool = pool_ + pieces[i].offset;
    list[i] = {gather ? pool : payload, gather ? payload : pool, pieces[i].bytes};
    payload += pieces[i].bytes;
  }
  BATON_CHECK(payload - PayloadOf(slot) <= int64_t{kMaxDataPayloadBytes});
  return {list, pieces.size()};
}

bool DeviceStager::Launch(const Work& work, std::span<const PoolPiece> pieces,
                          std::span<const std::byte> payload,
                          std::shared_ptr<GatheredBytes> gathered) {
  if (free_.empty()) return false;
  Launched copy{.slot = free_.back(), .work = work, .gathered = std::move(gathered)};
  free_.pop_back();
  for (const PoolPiece& piece : pieces) copy.bytes += piece.bytes;
  BATON_CHECK(copy.gathered != nullptr || static_cast<int64_t>(payload.size()) == copy.bytes);
  const auto list = ListPieces(copy.slot, pieces, copy.gathered != nullptr);
  if (!payload.empty()) std::memcpy(PayloadOf(copy.slot), payload.data(), payload.size());
  CheckDevice(device_.CopyPieces(Lane::kTransfer, list));
  auto mark = device_.MarkNow(Lane::kTransfer);
  CheckDevice(mark.status());
  copy.mark = *mark;
  launched_.push_back(std::move(copy));
  return true;
}

std::shared_ptr<GatheredBytes> DeviceStager::Gather(const Work& work,
                                                    std::span<const PoolPiece> pieces) {
  auto gathered = std::make_shared<GatheredBytes>();
  return Launch(work, pieces, {}, gathered) ? gathered : nullptr;
}

bool DeviceStager::Scatter(const Work& work, std::span<const PoolPiece> pieces,
                           std::span<const std::byte> payload) {
  return Launch(work, pieces, payload, nullptr);
}

void DeviceStager::Collect() {
  while (!launched_.empty()) {
    Launched& copy = launched_.front();
    const auto done = device_.IsDone(copy.mark);
    CheckDevice(done.status());
    if (!*done) {
      // Where no step is under way nobody else waits for the device.
      if (waited_.Look(now_()) >= kDeviceLimit) {
        CheckDevice(NotEndedWithin(device_.info().name, kDeviceLimit));
      }
      return;
    }
    waited_ = RunningTime(now_());
    if (copy.gathered != nullptr) {
      const std::byte* payload = PayloadOf(copy.slot);
      copy.gathered->bytes.assign(payload, payload + copy.bytes);
      copy.gathered->done = true;
    }
    free_.push_back(copy.slot);
    launched_.pop_front();
  }
}

int DeviceStager::Busy(const Work& work) const {
  return static_cast<int>(std::count_if(launched_.begin(), launched_.end(),
                                        [&](const Launched& copy) { return copy.work == work; }));
}

void DeviceStager::AwaitQuiet() {
  if (!launched_.empty()) CheckDevice(Wait(device_, launched_.back().mark, kDeviceLimit));
  Collect();
}

}  // namespace baton
