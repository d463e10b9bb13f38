#include "tests/transport/late_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace baton {

LateStager::LateStager(std::byte* pool, const Options& options)
    : pool_(pool), options_(options), random_(options.seed) {}

bool LateStager::Launch(Copy copy, std::span<const PoolPiece> pieces) {
  std::lock_guard lock(mutex_);
  if (static_cast<int>(copies_.size()) >= options_.slots) {
    Refuse(copy.work);
    return false;
  }
  works_.push_back(copy.work);
  waits_.erase(copy.work);
  copy.delay = 1 + static_cast<int>(random_.Below(static_cast<uint64_t>(options_.max_delay)));
  copy.pieces.assign(pieces.begin(), pieces.end());
  copies_.push_back(std::move(copy));
  ++launched_;
  return true;
}

void LateStager::Refuse(const Work& work) {
  refused_.insert(work);
  const auto [it, is_first] = waits_.try_emplace(work, Wait{.launches = works_.size()});
  if (is_first || it->second.launches == works_.size()) return;
  it->second.launches = works_.size();
  max_overtaken_ = std::max(max_overtaken_, ++it->second.overtaken);
}

std::shared_ptr<GatheredBytes> LateStager::Gather(const Work& work,
                                                  std::span<const PoolPiece> pieces) {
  auto gathered = std::make_shared<GatheredBytes>();
  if (!Launch({.work = work, .gathered = gathered}, pieces)) return nullptr;
  ++gathers_;
  return gathered;
}

bool LateStager::Scatter(const Work& work, std::span<const PoolPiece> pieces,
                         std::span<const std::byte> payload) {
  if (!Launch({.work = work, .payload = {payload.begin(), payload.end()}}, pieces)) return false;
  ++scatters_;
  return true;
}

std::vector<BlockStager::Work> LateStager::works() const {
  std::lock_guard lock(mutex_);
  return works_;
}

std::set<BlockStager::Work> LateStager::refused() const {
  std::lock_guard lock(mutex_);
  return refused_;
}

int LateStager::max_overtaken() const {
  std::lock_guard lock(mutex_);
  return max_overtaken_;
}

void LateStager::Land(Copy& copy) {
  const std::byte* from = copy.payload.data();
  for (const PoolPiece& piece : copy.pieces) {
    std::byte* at = pool_ + piece.offset;
    if (copy.gathered != nullptr) {
      copy.gathered->bytes.insert(copy.gathered->bytes.end(), at, at + piece.bytes);
    } else {
      std::memcpy(at, from, static_cast<size_t>(piece.bytes));
      from += piece.bytes;
    }
  }
  if (copy.gathered != nullptr) copy.gathered->done = true;
}

void LateStager::Collect() {
  ++collects_;
  if (held_) return;
  std::erase_if(copies_, [&](Copy& copy) {
    if (--copy.delay > 0) return false;
    Land(copy);
    return true;
  });
  launched_ = static_cast<int>(copies_.size());
}

int LateStager::Busy(const Work& work) const {
  return static_cast<int>(std::count_if(copies_.begin(), copies_.end(),
                                        [&](const Copy& copy) { return copy.work == work; }));
}

void LateStager::AwaitQuiet() {
  held_ = false;
  while (!idle()) Collect();
}

}  // namespace baton
