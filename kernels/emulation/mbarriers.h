#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/emulation/place.h"
#include "kernels/emulation/tensor_map.h"
#include "kernels/emulation/thread.h"

namespace baton::emulation {

// The mbarriers of the block that runs, and the tensor copies that they count. A copy lands when
// the phase that counts it can end and somebody waits for that; until then its place holds 0xff.
// Finds phases that end before their copies or with others than they expect, arrivals too many,
// uses of what is not initialised, copies that nobody waits for.
class Mbarriers {
 public:
  // For a new block, whose copies are the actors from `first_actor` on, of which it may have
  // `most`.
  void Reset(int first_actor, int most) {
    barriers_.clear();
    first_actor_ = first_actor;
    most_ = most;
  }

  // For so many arrivals in each phase.
  void Init(const void* address, int arrivals, const Site& site);
  // The phase ends once `bytes` more have landed, too.
  void Arrive(const void* address, int64_t bytes, const Site& site);
  // Until the phase of that parity has ended, of the last two.
  void Wait(const void* address, uint32_t parity, const Site& site);
  void Copy(void* to, const TensorMap& map, const void* address,
            const std::array<int32_t, TensorMap::kMostDims>& first, const Site& site);

  // What those lack for which somebody waits.
  std::string Describe() const;
  // Empty, or what is still in flight.
  std::string DescribeUnfinished() const;

 private:
  struct TensorCopy {
    std::byte* to;
    TensorMap map;
    std::array<int32_t, TensorMap::kMostDims> first;
    Place place;
  };
  struct Mbarrier {
    size_t offset;
    int arrivals;       // Of each phase,
    int pending;        // of this one so many are to come,
    int64_t bytes = 0;  // and so many bytes that somebody said would land.
    uint32_t phase = 0;
    Stamp init;
    Place init_place;
    ActorClocks told = {};   // By who arrived, up to now ...
    ActorClocks known = {};  // ... and up to the end of the last phase.
    std::vector<TensorCopy> copies = {};
    std::vector<int> waiting = {};
  };

  Mbarrier& Find(const void* address, const Site& site);
  Stamp LandingOf(const Mbarrier& barrier) const;
  // Ends the phase if nothing is missing but copies in flight, which land if `is_awaited`.
  void TryToEnd(Mbarrier& barrier, bool is_awaited, const Site& site);
  void Land(Mbarrier& barrier);

  std::vector<Mbarrier> barriers_;
  int first_actor_ = kMaxThreads;
  int most_ = kMaxMbarriers;
};

}  // namespace baton::emulation
