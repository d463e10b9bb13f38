#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

// A GPU as its driver shows it.
struct GpuFacts {
  int index = 0;
  std::string name;
  std::string architecture;  // "sm_90"
  int64_t memory_total = 0;  // Bytes; 0 where it cannot be asked.
  int64_t memory_free = 0;
  std::string unusable;  // Why Baton cannot compute on it, and the cure; empty: it can.
  bool too_old = false;  // That is why; otherwise it could, were it not full or broken.
};

// What a program of this build sees of GPUs on this machine.
struct GpuReport {
  std::string build;    // "cpu", "cuda" or "emulated": what GPUs this build computes on.
  std::string driver;   // The newest CUDA that the driver knows, "13.0"; empty: none.
  std::string problem;  // Why no GPU can be used, and the cure; empty: see `gpus`.
  bool broken = false;  // The driver is there and does not work: there may be GPUs.
  std::vector<GpuFacts> gpus;
  std::string chosen;  // What `--device auto` takes: "cpu" or "cuda:0", usable or not.
  std::string reason;  // Why that, or why it will not start.
};

// Of an error of making a GPU's device: there is none that could be used. Otherwise there is one,
// and something is wrong with it.
bool HasNoGpu(const absl::Status& status);

// Fills in what `auto` takes. `never`: why this build takes no GPU, wherever it runs; empty: it
// does.
void ChooseForAuto(absl::string_view never, GpuReport& report);

}  // namespace baton
