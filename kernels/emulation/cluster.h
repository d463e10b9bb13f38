#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/emulation/mbarriers.h"
#include "kernels/emulation/place.h"
#include "kernels/emulation/shared_memory.h"
#include "kernels/emulation/thread.h"

namespace baton::emulation {

// A block of the cluster that runs; most clusters are of one.
struct Block {
  Coordinates place;   // In its grid,
  uint32_t index = 0;  // and counted there.
  int first_thread = 0;
  int num_exited = 0;
  SharedMemory* shared = nullptr;
  BlockOrder order;
  Mbarriers mbarriers;
  std::vector<int> at_barrier;
  Site barrier_site;

  // What other blocks' threads did last to its shared memory, by thread.
  struct Visit {
    Stamp stamp;
    Place place;
  };
  std::map<int, Visit> visits;
};

// barrier.cluster of the cluster that runs: each phase is arrived at and then waited for by every
// thread of its blocks. What a thread does between the two is not told to the others.
class ClusterBarrier {
 public:
  void Reset();

  // By the current thread.
  void Arrive(const Site& site);
  void Wait(const Site& site);
  // Fails if others count on a thread that exits.
  void CheckExit(const Thread& thread) const;

 private:
  uint32_t phase_ = 0;
  int arrived_ = 0;
  Site site_;                    // Of the first that arrived.
  ActorClocks told_;             // By who arrived, up to now ...
  ActorClocks known_;            // ... and up to the end of the last phase.
  std::vector<int> waiting_;
};

// st.shared::cluster of 16 bytes by the current thread: to where `place`, in its own block's shared
// memory, lies in that of another block of its cluster. Finds places outside of it, blocks that
// nobody says have started, or that have ended.
void StoreRemote(void* place, int block, const void* value, const Site& site);

// Fails unless all visits to a block are known to one of its threads when the last one exits: else
// they may come after its end.
void CheckVisits(const Block& block);

}  // namespace baton::emulation
