#include "kernels/emulation/mbarriers.h"

#include <cstring>

#include "kernels/emulation/block_runner.h"

namespace baton::emulation {
namespace {

std::string NameOf(size_t offset) {
  return "the mbarrier at shared byte " + std::to_string(offset);
}

}  // namespace

void Mbarriers::Init(const void* address, int arrivals, const Site& site) {
  BlockRunner& runner = TheRunner();
  const Thread& thread = *runner.current();
  runner.shared().Check(Access::kWrite, address, 8, PlaceOf(site), thread, runner.order());
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(address) - runner.shared().data());
  for (const Mbarrier& other : barriers_) {
    if (other.offset == offset) Fail(NameOf(offset) + " is initialised twice, at " + Show(site));
  }
  if (std::ssize(barriers_) == most_) Fail("too many mbarriers at " + Show(site));
  barriers_.push_back({.offset = offset,
                       .arrivals = arrivals,
                       .pending = arrivals,
                       .init = Stamp::Of(thread.index, thread.clock, false),
                       .init_place = PlaceOf(site)});
}

Mbarriers::Mbarrier& Mbarriers::Find(const void* address, const Site& site) {
  const BlockRunner& runner = TheRunner();
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(address) - TheRunner().shared().data());
  for (Mbarrier& barrier : barriers_) {
    if (barrier.offset != offset) continue;
    if (!runner.order().IsBefore(barrier.init, *runner.current())) {
      Fail("race: " + runner.current()->Name() + " uses " + NameOf(offset) + " at " + Show(site) +
           ", initialised at " + Show(barrier.init_place) + " with no barrier between");
    }
    return barrier;
  }
  Fail(runner.current()->Name() + " uses " + NameOf(offset) + " at " + Show(site) +
       ", which nobody has initialised");
  return barriers_.front();  // Not reached.
}

Stamp Mbarriers::LandingOf(const Mbarrier& barrier) const {
  return Stamp::Of(first_actor_ + static_cast<int>(&barrier - barriers_.data()), barrier.phase + 1,
                   false);
}

void Mbarriers::Arrive(const void* address, int64_t bytes, const Site& site) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  Mbarrier& barrier = Find(address, site);
  if (barrier.pending == 0) {
    Fail(thread.Name() + " is one arrival too many at " + NameOf(barrier.offset) + ", at " +
         Show(site));
  }
  thread.Tell(barrier.told);
  runner.Tick(thread);
  --barrier.pending;
  barrier.bytes += bytes;
  TryToEnd(barrier, !barrier.waiting.empty(), site);
}

void Mbarriers::Land(Mbarrier& barrier) {
  SharedMemory& shared = TheRunner().shared();
  for (const TensorCopy& copy : barrier.copies) {
    ForEachChunk(copy.map, copy.to, copy.first,
                 [&](std::byte* to, const std::byte* from, int live) {
                   std::byte content[16] = {};
                   std::memcpy(content, from, static_cast<size_t>(live));
                   shared.LandTensorCopy(to, content, LandingOf(barrier));
                 });
    barrier.bytes -= copy.map.BoxBytes();
  }
  barrier.copies.clear();
}

void Mbarriers::TryToEnd(Mbarrier& barrier, bool is_awaited, const Site& site) {
  if (barrier.pending > 0) return;
  if (barrier.bytes == 0 && !barrier.copies.empty()) {
    Fail("a phase of " + NameOf(barrier.offset) + " ends at " + Show(site) +
         " before a copy that it counts, issued at " + Show(barrier.copies[0].place));
  }
  if (barrier.bytes > 0 && is_awaited) Land(barrier);
  if (barrier.bytes < 0) {
    Fail(std::to_string(-barrier.bytes) + " B more than it expects land at " +
         NameOf(barrier.offset) + " by " + Show(site));
  }
  if (barrier.bytes > 0) return;
  const Stamp landing = LandingOf(barrier);
  barrier.told.Raise(landing.thread(), landing.clock());
  barrier.known = barrier.told;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  for (const int thread : barrier.waiting) TheRunner().Wake(thread);
  barrier.waiting.clear();
}

void Mbarriers::Wait(const void* address, uint32_t parity, const Site& site) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  // By index: others may initialise more while this one is parked.
  const auto index = &Find(address, site) - barriers_.data();
  while ((barriers_[index].phase & 1) == parity) {
    TryToEnd(barriers_[index], true, site);
    if ((barriers_[index].phase & 1) != parity) break;
    barriers_[index].waiting.push_back(thread.index);
    runner.Park("an mbarrier's phase", site);
  }
  thread.Learn(barriers_[index].known);
}

void Mbarriers::Copy(void* to, const TensorMap& map, const void* address,
                     const std::array<int32_t, TensorMap::kMostDims>& first, const Site& site) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  Mbarrier& barrier = Find(address, site);
  const TensorCopy copy{static_cast<std::byte*>(to), map, first, PlaceOf(site)};
  if (!runner.order().IsFenced(barrier.init)) {
    Fail(thread.Name() + " copies at " + Show(site) + " with " + NameOf(barrier.offset) +
         ", whose initialisation no fence.proxy.async follows");
  }
  // The hardware's own limit; wgmma reads what lies as from a multiple of 1024.
  if (reinterpret_cast<uintptr_t>(to) % 128 != 0) {
    Fail(thread.Name() + ": a tensor copy at " + Show(site) + " goes to no multiple of 128 B");
  }
  ForEachChunk(map, copy.to, first, [&](std::byte* chunk, const std::byte* from, int live) {
    if (live == 16) {
      runner.OnAccess(Access::kRead, from, 16, copy.place);
    } else {
      for (int i = 0; i < live; i += 2) runner.OnAccess(Access::kRead, from + i, 2, copy.place);
    }
    runner.shared().BeginTensorCopy(chunk, LandingOf(barrier), copy.place, thread, runner.order());
  });
  barrier.copies.push_back(copy);
  TryToEnd(barrier, !barrier.waiting.empty(), site);
}

std::string Mbarriers::Describe() const {
  std::string text;
  for (const Mbarrier& barrier : barriers_) {
    if (barrier.waiting.empty()) continue;
    text += " " + NameOf(barrier.offset) + " lacks " + std::to_string(barrier.pending) +
            " arrivals and " + std::to_string(barrier.bytes) + " B in its phase " +
            std::to_string(barrier.phase) + ";";
  }
  return text;
}

std::string Mbarriers::DescribeUnfinished() const {
  for (const Mbarrier& barrier : barriers_) {
    if (barrier.copies.empty()) continue;
    return "with a tensor copy never waited for, issued at " + Show(barrier.copies[0].place);
  }
  return "";
}

}  // namespace baton::emulation
