#include "common/transport/nccl/staging.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace baton::nccl {

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(Device& device, const KvCache& cache,
                                                         const Options& options, OnLost on_lost,
                                                         std::function<Time()> now) {
  std::unique_ptr<Staging> staging(
      new Staging(device, cache, options, std::move(on_lost), std::move(now)));
  ASSIGN_OR_RETURN(staging->slots_,
                   device.Allocate(options.slots * options.slot_bytes, MemoryKind::kDevice));
  ASSIGN_OR_RETURN(staging->lists_,
                   device.Allocate(options.slots * staging->list_bytes_, MemoryKind::kPinned));
  return staging;
}

Staging::Staging(Device& device, const KvCache& cache, const Options& options, OnLost on_lost,
                 std::function<Time()> now)
    : device_(device),
      pool_(cache.base()),
      options_(options),
      on_lost_(std::move(on_lost)),
      now_(std::move(now)),
      list_bytes_(static_cast<int64_t>(options.max_pieces * sizeof(CopyPiece)) +
                  kMaxBatchFrames * static_cast<int64_t>(sizeof(SummedPiece) + sizeof(uint64_t))),
      waited_(now_()) {}

void Staging::CheckDevice(const absl::Status& status) const {
  if (status.ok()) return;
  on_lost_(status);
  BATON_CHECK(false);  // It does not return.
}

CopyPiece* Staging::PiecesOf(int slot) const {
  return lists_.array<CopyPiece>(slot * list_bytes_);
}

SummedPiece* Staging::SummedOf(int slot) const {
  return lists_.array<SummedPiece>(slot * list_bytes_ +
                                   static_cast<int64_t>(options_.max_pieces * sizeof(CopyPiece)));
}

uint64_t* Staging::SumsOf(int slot) const {
  return reinterpret_cast<uint64_t*>(SummedOf(slot) + kMaxBatchFrames);
}

void Staging::Move(int slot, std::span<const Frame> frames, bool gathers, Launched* launched) {
  CopyPiece* const list = PiecesOf(slot);
  size_t count = 0;
  std::byte* staged = this->slot(slot);
  for (size_t i = 0; i < frames.size(); ++i) {
    std::byte* at = staged;
    for (const PoolPiece& piece : frames[i].pieces) {
      BATON_CHECK(count < options_.max_pieces);
      std::byte* const pool = pool_ + piece.offset;
      list[count++] = {gathers ? pool : at, gathers ? at : pool, piece.bytes};
      at += piece.bytes;
    }
    staged += frames[i].bytes;
    if (frames[i].pieces.empty()) continue;
    BATON_CHECK(at == staged);
    launched->landed.moved.set(i);
    launched->works.push_back(frames[i].work);
  }
  BATON_CHECK(staged <= this->slot(slot) + options_.slot_bytes);
  if (count > 0) CheckDevice(device_.CopyPieces(Lane::kTransfer, {list, count}));
}

void Staging::LaunchSums(int slot, std::span<const int64_t> bytes) {
  BATON_CHECK(bytes.size() <= size_t{kMaxBatchFrames});
  SummedPiece* const list = SummedOf(slot);
  const std::byte* at = this->slot(slot);
  for (size_t i = 0; i < bytes.size(); ++i) {
    list[i] = {at, bytes[i], SumsOf(slot) + i};
    at += bytes[i];
  }
  CheckDevice(device_.SumPieces(Lane::kTransfer, {list, bytes.size()}));
}

void Staging::Finish(Launched launched) {
  const auto mark = device_.MarkNow(Lane::kTransfer);
  CheckDevice(mark.status());
  launched.mark = *mark;
  for (const BlockStager::Work& work : launched.works) ++busy_[work];
  launched_.push_back(std::move(launched));
}

void Staging::Gather(BatchKey key, int slot, std::span<const Frame> frames) {
  Launched launched{.landed = {.kind = Landed::Kind::kGather, .key = key},
                    .slot = slot,
                    .num_sums = frames.size()};
  Move(slot, frames, /*gathers=*/true, &launched);
  std::vector<int64_t> bytes;
  for (const Frame& frame : frames) bytes.push_back(frame.bytes);
  LaunchSums(slot, bytes);
  Finish(std::move(launched));
}

void Staging::Sum(BatchKey key, int slot, std::span<const int64_t> bytes) {
  LaunchSums(slot, bytes);
  Finish({.landed = {.kind = Landed::Kind::kSum, .key = key},
          .slot = slot,
          .num_sums = bytes.size()});
}

void Staging::Scatter(BatchKey key, int slot, std::span<const Frame> frames) {
  Launched launched{.landed = {.kind = Landed::Kind::kScatter, .key = key}, .slot = slot};
  Move(slot, frames, /*gathers=*/false, &launched);
  Finish(std::move(launched));
}

std::vector<Staging::Landed> Staging::Collect() {
  std::vector<Landed> landed;
  if (launched_.empty()) waited_ = RunningTime(now_());
  while (!launched_.empty()) {
    Launched& first = launched_.front();
    const auto done = device_.IsDone(first.mark);
    CheckDevice(done.status());
    if (!*done) {
      if (waited_.Look(now_()) > kDeviceLimit) {
        CheckDevice(NotEndedWithin(device_.info().name, kDeviceLimit));
      }
      break;
    }
    waited_ = RunningTime(now_());
    const uint64_t* const sums = SumsOf(first.slot);
    first.landed.sums.assign(sums, sums + first.num_sums);
    for (const BlockStager::Work& work : first.works) {
      if (--busy_[work] == 0) busy_.erase(work);
    }
    landed.push_back(std::move(first.landed));
    launched_.pop_front();
  }
  return landed;
}

int Staging::Busy(const BlockStager::Work& work) const {
  const auto it = busy_.find(work);
  return it == busy_.end() ? 0 : it->second;
}

void Staging::AwaitQuiet() {
  if (!launched_.empty()) CheckDevice(Wait(device_, launched_.back().mark, kDeviceLimit));
  launched_.clear();
  busy_.clear();
}

}  // namespace baton::nccl
