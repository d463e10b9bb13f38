#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/machine_share.h"

namespace baton::cli {

// What this machine offers, read from /proc, /sys and the scheduler. Missing facts stay empty or 0.
struct Machine {
  std::string cpu_model;
  std::string isa;              // "AVX-512", "AVX2" or "portable": the widest that Baton can use.
  MachineShare share;
  int64_t open_files = 0;       // Soft limit of this process.
  std::string gpu;              // Version of the NVIDIA driver, when one is loaded.
};

Machine ReadMachine();

// The "isa" of a /proc/cpuinfo "flags" line.
std::string IsaOfFlags(absl::string_view flags);

// Cores divided over the workers, at least 1.
int ThreadsPerWorker(int cores, int num_workers);

// The whole file, at most `max_bytes` of it; empty when it cannot be read.
std::string ReadSmallFile(const std::string& path, int64_t max_bytes = 1 << 20);

// "3.1 MiB", "12.4 GiB".
std::string HumanBytes(int64_t bytes);

}  // namespace baton::cli
