#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::cli {

// What this machine offers, read from /proc, /sys and the scheduler. Missing facts stay empty or 0.
struct Machine {
  std::string cpu_model;
  std::string isa;              // "AVX-512", "AVX2" or "portable": the widest that Baton can use.
  int cores = 1;                // Usable here: affinity mask and cgroup quota considered.
  int64_t memory_bytes = 0;     // Physical, or the cgroup's limit where that is lower.
  int64_t available_bytes = 0;  // Can be allocated now without swapping.
  int64_t open_files = 0;       // Soft limit of this process.
  std::string gpu;              // Version of the NVIDIA driver, when one is loaded.
};

Machine ReadMachine();

// Cores of a cgroup v2 "cpu.max" line ("200000 100000" = 2), rounded up; 0 when unlimited or odd.
int CoresOfQuota(absl::string_view cpu_max);

// The "isa" of a /proc/cpuinfo "flags" line.
std::string IsaOfFlags(absl::string_view flags);

// Cores divided over the workers, at least 1.
int ThreadsPerWorker(int cores, int num_workers);

// The whole file, at most `max_bytes` of it; empty when it cannot be read.
std::string ReadSmallFile(const std::string& path, int64_t max_bytes = 1 << 20);

// "3.1 MiB", "12.4 GiB".
std::string HumanBytes(int64_t bytes);

}  // namespace baton::cli
