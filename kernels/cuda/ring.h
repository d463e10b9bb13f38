#pragma once

#include <cstdint>

#include "kernels/cuda/floats.h"

namespace baton::cuda {

// What all threads of a warp have alike, so that the compiler knows: addresses of tiles stay out of
// the registers of each thread, and the instructions that would bring them from there away.
BATON_DEVICE int Uniform(int x) { return __shfl_sync(~0u, x, 0); }

// Stages in turn: which one is next, and whether all were passed an odd number of times, which is
// the parity of their mbarriers' phase.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  BATON_DEVICE void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace baton::cuda
