#include "tests/sim/sim_gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_nccl.h"

namespace baton::sim {
namespace {

constexpr size_t kAlignment = 64;
constexpr Duration kLongestSlice = std::chrono::milliseconds(100);
// A second without progress of the pair, which a word for its other batch and the announcement of
// another one may each begin anew; and the turns that it takes to see it.
constexpr Duration kExchangeBound = std::chrono::milliseconds(3500);

uint64_t FactorOf(uint64_t place) {
  return Random::Mix((place + 1) * 0x9E3779B97F4A7C15) | 1;
}

uint64_t SumOf(const SummedPiece& piece) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < piece.bytes / 4; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, piece.data + 4 * i, sizeof(word));
    sum += word * FactorOf(static_cast<uint64_t>(i));
  }
  return sum;
}

bool Overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

SimGpu* SimGpu::current = nullptr;

absl::StatusOr<Buffer> SimGpu::Allocate(int64_t bytes, MemoryKind kind) {
  const auto size = static_cast<size_t>(bytes);
  auto* data = static_cast<std::byte*>(::operator new(size, std::align_val_t(kAlignment)));
  std::memset(data, 0xAB, size);
  const std::shared_ptr<void> owner(
      data, [](void* p) { ::operator delete(p, std::align_val_t(kAlignment)); });
  // The one buffer on the device is that of the slots.
  if (kind == MemoryKind::kDevice) staging_ = Buffer(data, bytes, owner);
  return Buffer(data, bytes, owner);
}

bool SimGpu::IsStaging(const std::byte* at) const {
  return at >= staging_.data() && at < staging_.data() + staging_.size_bytes();
}

// ---- Slots -------------------------------------------------------------------------------------

void SimGpu::CheckUnused(std::span<const std::byte> staged, bool by_nccl) {
  for (const auto& exchange : begun_) {
    if (Overlap(staged, {exchange->data, exchange->bytes})) {
      parts_.violation(by_nccl ? "NCCL: a slot is in two of its operations"
                               : "NCCL: a kernel touches a slot that NCCL may touch");
    }
  }
  for (const Group& group : groups_) {
    for (const std::span<const std::byte> other : group.staged) {
      if (Overlap(staged, other)) {
        parts_.violation("NCCL: a slot is used again before its kernel has ended");
      }
    }
  }
}

void SimGpu::Use(std::span<const std::byte> staged) {
  CheckUnused(staged, /*by_nccl=*/false);
  launching_.staged.push_back(staged);
}

// ---- kTransfer ---------------------------------------------------------------------------------

absl::Status SimGpu::CopyPieces(Lane lane, std::span<const CopyPiece> pieces) {
  BATON_CHECK(lane == Lane::kTransfer);
  const bool gathers = IsStaging(pieces.front().to);
  for (const CopyPiece& piece : pieces) {
    const std::byte* const staged = gathers ? piece.to : piece.from;
    BATON_CHECK(IsStaging(staged) && IsStaging(staged + piece.bytes - 1));
    Use({staged, static_cast<size_t>(piece.bytes)});
  }
  launching_.copies.push_back(pieces);
  if (gathers && ++gathers_ > grants_) parts_.violation("NCCL: a gather before its grant");
  return absl::OkStatus();
}

absl::Status SimGpu::SumPieces(Lane lane, std::span<const SummedPiece> pieces) {
  BATON_CHECK(lane == Lane::kTransfer);
  for (const SummedPiece& piece : pieces) {
    Use({piece.data, static_cast<size_t>(piece.bytes)});
  }
  launching_.sums.push_back(pieces);
  return absl::OkStatus();
}

absl::StatusOr<Mark> SimGpu::MarkNow(Lane lane) {
  if (lane == Lane::kExchange) return Mark{lane, num_left_ + lane_.size()};
  BATON_CHECK(lane == Lane::kTransfer);
  World& world = parts_.world;
  groups_.push_back(std::exchange(launching_, {}));
  const Duration takes =
      world.Hit(Fault::kSlow) ? world.Micros(1000, 400000) : world.Micros(10, 500);
  last_landing_ = std::max(world.now() + takes, last_landing_ + Duration(1));
  world.Schedule(last_landing_, {.guard = parts_.host.epoch_guard()}, [this] { Land(); });
  return Mark{lane, ++num_groups_};
}

void SimGpu::Land() {
  const Group group = std::move(groups_.front());
  groups_.pop_front();
  ++num_landed_;
  for (const auto& pieces : group.copies) {
    for (const CopyPiece& piece : pieces) {
      const auto bytes = static_cast<size_t>(piece.bytes);
      if (IsStaging(piece.to)) {
        parts_.memory.OnSent(piece.from, bytes);
      } else {
        parts_.memory.OnReceived(piece.to, bytes);
      }
      std::memcpy(piece.to, piece.from, bytes);
    }
  }
  for (const auto& pieces : group.sums) {
    for (const SummedPiece& piece : pieces) *piece.sum = SumOf(piece);
  }
  parts_.turn();
}

absl::StatusOr<bool> SimGpu::IsDone(Mark mark) {
  return mark.number <= (mark.lane == Lane::kExchange ? num_left_ : num_landed_);
}

// ---- kExchange ---------------------------------------------------------------------------------

absl::StatusOr<void*> SimGpu::NativeLane(Lane lane) {
  BATON_CHECK(lane == Lane::kExchange);
  current = this;
  return this;
}

void SimGpu::Begin(std::shared_ptr<Exchange> exchange) {
  CheckUnused({exchange->data, exchange->bytes}, /*by_nccl=*/true);
  for (const auto& other : begun_) {
    if (!exchange->sends && other->comm != exchange->comm) {
      parts_.violation("NCCL: receives of two pairs are posted at once");
    }
  }
  begun_.push_back(std::move(exchange));
}

void SimGpu::Advance() {
  std::erase_if(begun_, [](const auto& exchange) { return exchange->is_over; });
  for (; !lane_.empty() && lane_.front()->is_over; lane_.pop_front()) ++num_left_;
}

std::string SimGpu::DescribeState() const {
  std::string text = absl::StrCat("kernels ", groups_.size(), ", calls ", calls_.size(),
                                  is_hung_ ? " behind one that hangs" : "", ", operations begun ",
                                  begun_.size(), ", on the lane");
  for (const auto& exchange : lane_) {
    absl::StrAppend(&text, exchange->sends ? " send " : " receive ", exchange->comm->number,
                    exchange->has_met ? " that has met" : "");
  }
  return text;
}

// While the thread is in a call, or another one waits for it, the calls have limits of their own.
void SimGpu::Watch(Time now) {
  const Duration slice = std::clamp<Duration>(now - watched_, Duration::zero(), kLongestSlice);
  watched_ = now;
  if (!calls_.empty()) return;
  for (const auto& exchange : lane_) {
    exchange->waited += slice;
    if (exchange->waited > kExchangeBound) {
      parts_.violation("NCCL: an operation is waited for beyond its bound");
    }
  }
}

// ---- Calls that take long ----------------------------------------------------------------------

void SimGpu::Post(std::function<void()> call) {
  calls_.push_back(std::move(call));
  if (calls_.size() == 1) NextCall();
}

void SimGpu::NextCall() {
  World& world = parts_.world;
  if (is_hung_ || world.Hit(Fault::kNcclHangs)) {
    is_hung_ = true;
    return;
  }
  const Duration takes =
      world.Hit(Fault::kSlow) ? world.Micros(1000, 1500000) : world.Micros(20, 3000);
  parts_.host.After(takes, [this] {
    calls_.front()();
    calls_.pop_front();
    parts_.turn();
    if (!calls_.empty()) NextCall();
  });
}

}  // namespace baton::sim
