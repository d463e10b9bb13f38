#pragma once

#include <cstdint>

#include "kernels/cuda/floats.h"

namespace baton::cuda {

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
