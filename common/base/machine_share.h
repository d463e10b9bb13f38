#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace baton {

// The part of a machine that a process may use: what the kernel lets it run on, and what its
// control group (v2 or v1, and those above it) leaves it.
struct MachineShare {
  int allowed_cores = 1;         // Of its affinity mask, which cpusets narrow.
  int quota_cores = 0;           // Of the narrowest CPU quota, rounded up; 0 = there is none.
  int64_t physical_bytes = 0;    // Of the machine.
  int64_t limit_bytes = 0;       // The lowest memory limit below that; 0 = there is none.
  int64_t available_bytes = 0;   // Can be allocated now: of the machine and of each group.

  int cores() const;
  int64_t memory_bytes() const { return limit_bytes > 0 ? limit_bytes : physical_bytes; }
};

// Of this process, now.
MachineShare ReadMachineShare();

// The same of the files below `root`, which has proc/ and sys/ as "/" has; what cannot be read
// limits nothing.
MachineShare ReadMachineShareAt(const std::string& root, int allowed_cores);

// How many CPUs a mask has that the kernel fills in by `read`, sched_getaffinity for a process:
// where one of so many bytes is too small for the machine it says EINVAL. 1 if it cannot be read.
int AllowedCores(absl::FunctionRef<int(size_t bytes, cpu_set_t* set)> read);

// Cores of a quota and its period, rounded up; 0 without one. "200000 100000" is 2, "max ..." is 0.
int CoresOfQuota(absl::string_view quota_and_period);

}  // namespace baton
