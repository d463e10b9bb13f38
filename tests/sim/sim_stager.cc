#include "tests/sim/sim_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace baton::sim {

SimStager::Totals& SimStager::Totals::operator+=(const Totals& other) {
  gathers += other.gathers;
  scatters += other.scatters;
  refused += other.refused;
  return *this;
}

SimStager::SimStager(World& world, Host& host, TagMemory& memory, Totals* totals,
                     std::function<void()> turn)
    : world_(world),
      host_(host),
      memory_(memory),
      totals_(*totals),
      turn_(std::move(turn)),
      slots_(1 + world.random.Below(4)) {}

bool SimStager::Launch(Copy copy, std::span<const PoolPiece> pieces) {
  if (copies_.size() == slots_) {
    ++totals_.refused;
    return false;
  }
  copy.pieces.assign(pieces.begin(), pieces.end());
  copies_.push_back(std::make_shared<Copy>(std::move(copy)));
  const Duration takes =
      world_.Hit(Fault::kSlow) ? world_.Micros(1000, 400000) : world_.Micros(10, 500);
  last_landing_ = std::max(world_.now() + takes, last_landing_ + Duration(1));
  host_.At(last_landing_, [this, landing = copies_.back()] {
    Land(*landing);
    turn_();
  });
  return true;
}

std::shared_ptr<GatheredBytes> SimStager::Gather(const Work& work,
                                                 std::span<const PoolPiece> pieces) {
  auto gathered = std::make_shared<GatheredBytes>();
  if (!Launch({.work = work, .gathered = gathered}, pieces)) return nullptr;
  ++totals_.gathers;
  return gathered;
}

bool SimStager::Scatter(const Work& work, std::span<const PoolPiece> pieces,
                        std::span<const std::byte> payload) {
  if (!Launch({.work = work, .bytes = {payload.begin(), payload.end()}}, pieces)) return false;
  ++totals_.scatters;
  return true;
}

void SimStager::Land(Copy& copy) {
  if (std::exchange(copy.landed, true)) return;
  size_t at = 0;
  size_t whole = 0;
  for (const PoolPiece& piece : copy.pieces) whole += static_cast<size_t>(piece.bytes);
  BATON_CHECK(copy.gathered != nullptr || copy.bytes.size() == whole);
  for (const PoolPiece& piece : copy.pieces) {
    std::byte* start = memory_.cache().base() + piece.offset;
    const auto bytes = static_cast<size_t>(piece.bytes);
    if (copy.gathered != nullptr) {
      memory_.OnSent(start, bytes);
      copy.bytes.insert(copy.bytes.end(), start, start + bytes);
    } else {
      memory_.OnReceived(start, bytes);
      std::memcpy(start, copy.bytes.data() + at, bytes);
    }
    at += bytes;
  }
}

void SimStager::Collect() {
  std::erase_if(copies_, [](const std::shared_ptr<Copy>& copy) {
    if (!copy->landed) return false;
    if (copy->gathered != nullptr) {
      copy->gathered->bytes = std::move(copy->bytes);
      copy->gathered->done = true;
    }
    return true;
  });
}

int SimStager::Busy(const Work& work) const {
  return static_cast<int>(
      std::ranges::count_if(copies_, [&](const auto& copy) { return copy->work == work; }));
}

void SimStager::AwaitQuiet() {
  for (const std::shared_ptr<Copy>& copy : copies_) Land(*copy);
  Collect();
}

}  // namespace baton::sim
