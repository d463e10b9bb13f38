#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "tests/bench/machine_roofs.h"
#include "tests/bench/report.h"

namespace baton::bench {

// What of the operators is measured.
struct OpOptions {
  std::string model;  // Products of this model's shapes only; empty: all.
  std::string only;   // Only rows that have this in their name; empty: all.
  bool bf16 = true;   // Compute and cache; else f32.
  int repeats = 5;
  bool quick = false;  // Fewer and smaller shapes: that it works, not how fast.

  bool Wants(std::string_view name) const { return name.find(only) != std::string_view::npos; }
};

// Each appends its rows; `kernels` and `roofs` have the same number of threads.
void AddGemmRows(const OpOptions& options, CpuKernels& kernels, MachineRoofs& roofs,
                 std::vector<Row>& rows);
void AddAttentionRows(const OpOptions& options, CpuKernels& kernels, MachineRoofs& roofs,
                      std::vector<Row>& rows);
// Beside memcpy of the same bytes by one thread.
void AddCacheRows(const OpOptions& options, CpuKernels& kernels, std::vector<Row>& rows);

}  // namespace baton::bench
