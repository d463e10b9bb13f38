#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/emulation/tensor_core.h"

namespace baton::emulation {

// How the emulated GPU of a process differs from the usual one, for tests of programs.
struct Options {
  uint64_t seed = 1;
  size_t memory = size_t{1} << 30;  // The host has to have it: fresh memory is filled.
  Architecture architecture = Architecture::kHopper;
  bool too_old = false;  // sm_75, which Baton does not take.
  int64_t lose = 0;     // The device is lost in its n-th kernel; 0: never.
  bool detects = true;  // Off: no races, no bounds, no faults of the host; faster and smaller.
  int devices = 1;      // 0: none.
  int driver = 13000;   // Its version; 0: there is none.
};

// Of words like "seed=3 memory=1000000 arch=sm80 lose=20 detector=off devices=0 driver=12020".
// Nothing if one of them is not understood.
std::optional<Options> ParseOptions(std::string_view text);

// Of BATON_EMULATED_GPU; ends the process if it is not understood.
const Options& OptionsOfEnvironment();

}  // namespace baton::emulation
