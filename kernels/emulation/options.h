#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/emulation/tensor_core.h"

namespace baton::emulation {

// What of a real GPU the emulated one has. Sums are those of the nearest one that publications
// describe.
struct GpuModel {
  std::string_view name;  // As of nvcc, e.g. sm_90 is "sm90".
  int major;
  int minor;
  Architecture sums;
  size_t shared_bytes;  // That a block may have.
};
// Null: there is none of that name.
const GpuModel* FindGpuModel(std::string_view name);

// How sums of wgmma differ from those of mma.sync, by where the first operand lies.
struct WgmmaSums {
  Deviation of_shared = Deviation::kNone;
  Deviation of_registers = Deviation::kNone;
};

// Of a process.
inline constexpr int kMostDevices = 8;

// How the emulated GPUs of a process differ from the usual one, for tests of programs.
struct Options {
  uint64_t seed = 1;
  size_t memory = size_t{1} << 30;  // Of each. The host has to have it: fresh memory is filled.
  size_t taken = 0;                 // Of it, by nobody knows whom.
  std::string shared;               // A file: the processes that name it share each memory.
  // Of one device after the other; the last is that of all further ones.
  std::vector<const GpuModel*> models = {FindGpuModel("sm90")};
  int64_t lose = 0;     // The device of the n-th kernel is lost in it; 0: none.
  int64_t hang = 0;     // The n-th kernel never ends, nor does any later one; 0: none.
  bool detects = true;  // Off: no races, no bounds, no faults of the host; faster and smaller.
  int devices = 1;      // At most kMostDevices; 0: none.
  bool peers = true;    // Off: none reaches the memory of another.
  int driver = 13000;   // Its version; 0: there is none.
  WgmmaSums wgmma;      // Of every device.
};

// Of words like "seed=3 memory=1000000 taken=1000 shared=/tmp/use arch=sm86 lose=20 hang=3" or
// "devices=2 arch=sm90,sm80 peers=off driver=12020 detector=off wgmma=halves". Nothing if one is
// not understood.
std::optional<Options> ParseOptions(std::string_view text);

// Of BATON_EMULATED_GPU; ends the process if it is not understood.
const Options& OptionsOfEnvironment();

}  // namespace baton::emulation
